// Callers that gather beside threads, from memory that a writer appends to: for ThreadSanitizer, without Python.
//
//     threads_gather SECONDS SEED
//
// The writer adds rows to the tail and to a flat column, then raises the count of rows; packs chunks into a shard, then their entries; and
// uses the tail's rows again only then. Each row says which it is, so every byte of every batch is known.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "checksums.hpp"
#include "jobs.hpp"
#include "plan.hpp"

using namespace diskbuffer;

namespace {

constexpr int64_t ROWS = 4096, CHUNK_ROWS = 4, TAIL_ROWS = 64, ROW_BYTES = 40, CHUNKS = ROWS / CHUNK_ROWS;
constexpr int64_t CHUNK_BYTES = CHUNK_ROWS * ROW_BYTES, STORED = HEADER + CHUNK_BYTES + CHECKSUM;
constexpr int CALLERS = 3, THREADS = 4, WINDOW = 5, SAMPLES = 64;

uint32_t crc_of_bytes(uint32_t crc, const uint8_t* data, size_t size) {
    crc = ~crc;
    for (size_t k = 0; k < size; k++) {
        crc ^= data[k];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82F63B78u & -(crc & 1));
    }
    return ~crc;
}

uint8_t value_of(int64_t row, int64_t byte) { return static_cast<uint8_t>(row * 31 + row / 256 + byte); }

// A stream whose rows come one after the other: all that a writer writes.
struct World {
    std::atomic<int64_t> rows{0};
    std::vector<uint8_t> flat = std::vector<uint8_t>(ROWS * 8);
    std::vector<uint8_t> tail = std::vector<uint8_t>(TAIL_ROWS * ROW_BYTES);
    std::vector<int64_t> shard = std::vector<int64_t>((CHUNKS * STORED + 15) / 16 * 2 + CHUNKS * 2, Entry::EMPTY);  // words, for alignment

    uint8_t* bytes() { return reinterpret_cast<uint8_t*>(shard.data()); }
    Source shard_source() { return {reinterpret_cast<uintptr_t>(shard.data()), static_cast<int64_t>(shard.size() * 8)}; }
    Entry* entries() { return reinterpret_cast<Entry*>(bytes() + shard.size() * 8) - CHUNKS; }

    void pack(int64_t chunk) {
        uint8_t* out = bytes() + chunk * STORED;
        const uint32_t size = HEADER + CHUNK_BYTES, chunk_bytes = CHUNK_BYTES;
        const uint8_t head[4] = {2, 1, MEMCPYED, 1};
        std::memcpy(out, head, 4);
        store(out + 4, chunk_bytes), store(out + 8, chunk_bytes), store(out + 12, size);
        for (int64_t k = 0; k < CHUNK_BYTES; k++) out[HEADER + k] = value_of(chunk * CHUNK_ROWS + k / ROW_BYTES, k % ROW_BYTES);
        store(out + size, crc_of_bytes(0, out, size));
        store_release(&entries()[chunk].offset, chunk * STORED);
        store_release(&entries()[chunk].size, STORED);
    }

    void write(std::mt19937& random) {
        int64_t packed = 0;
        for (int64_t row = 0; row < ROWS; row++) {
            while (row - packed * CHUNK_ROWS >= TAIL_ROWS || (row / CHUNK_ROWS > packed && random() % 8 == 0)) pack(packed++);
            for (int64_t k = 0; k < ROW_BYTES; k++)
                __atomic_store_n(&tail[row % TAIL_ROWS * ROW_BYTES + k], value_of(row, k), __ATOMIC_RELEASE);
            store(&flat[row * 8], row);
            rows.store(row + 1, std::memory_order_release);
            if (random() % 4 == 0) std::this_thread::yield();
        }
    }
};

void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

// Gather batches until the writer is done.
void gather_until_done(World& world, Crew& crew, unsigned seed, std::atomic<int64_t>& batches) {
    std::mt19937 random(seed);
    std::vector<uint8_t> frames(SAMPLES * WINDOW * ROW_BYTES), scratch(2 * CHUNK_BYTES);
    std::vector<int64_t> numbers(SAMPLES * WINDOW);
    std::vector<int64_t> streams(SAMPLES), positions(SAMPLES), starts(SAMPLES), lasts(SAMPLES);
    int64_t start = 0;
    const int64_t slot = 0;
    const Source mapped[2] = {{reinterpret_cast<uintptr_t>(world.flat.data()), ROWS * 8}, world.shard_source()};
    Target targets[2]{};
    for (int t = 0; t < 2; t++) targets[t].column = t, targets[t].rows = WINDOW, targets[t].checksums = -1, targets[t].lanes = 1;
    targets[0].row_bytes = 8, targets[0].out = reinterpret_cast<uint8_t*>(numbers.data());
    targets[1].row_bytes = ROW_BYTES, targets[1].out = frames.data(), targets[1].chunk_rows = CHUNK_ROWS, targets[1].chunks = CHUNKS;
    targets[1].tail = world.tail.data(), targets[1].tail_rows = TAIL_ROWS;
    int64_t rows = 0;
    while (rows < ROWS) {
        rows = world.rows.load(std::memory_order_acquire);
        if (rows == 0) continue;
        const Stream stream{rows - 1, 0, 0, 0, 1, &start, 1, &slot, 0, nullptr, 0, 0, 0};
        for (int i = 0; i < SAMPLES; i++) {
            const int64_t back = random() % 2 ? random() % rows : random() % std::min<int64_t>(rows, TAIL_ROWS);
            streams[i] = 0, positions[i] = rows - 1 - back, starts[i] = 0, lasts[i] = rows - 1;
        }
        const Windows windows{streams.data(), positions.data(), starts.data(), lasts.data(), SAMPLES, WINDOW - 1, WINDOW};
        const Layout layout{ROWS, 1};
        Job job;
        Share& share = job.shares.emplace_back();
        share.targets = targets, share.stores = 1, share.n_targets = 2, share.columns = 2;
        if (!find_runs({&stream, 1}, windows, layout, 0, share.runs)) fail("a step is not there");
        if (!find_sources({mapped, 2, 1}, share.runs, share.sources)) fail("not mapped");
        job.largest = CHUNK_BYTES;
        job.split(1 + random() % 8);
        if (random() % 2) crew.call(1);
        crew.submit(job, random() % (THREADS + 1), random() % 4 == 0);
        const bool is_left = random() % 8 == 0;
        while (!is_left && !crew.wait(job, std::chrono::microseconds(100), scratch.data())) {}
        crew.withdraw(job);
        if (is_left) continue;
        if (job.damaged() >= 0) fail("a chunk cannot be read");
        for (int i = 0; i < SAMPLES; i++)
            for (int k = 0; k < WINDOW; k++) {
                const int64_t row = std::max<int64_t>(0, positions[i] - (WINDOW - 1) + k);
                if (numbers[i * WINDOW + k] != row) fail("another row of the flat column");
                for (int64_t byte = 0; byte < ROW_BYTES; byte++)
                    if (frames[(i * WINDOW + k) * ROW_BYTES + byte] != value_of(row, byte)) fail("another row of the packed column");
            }
        batches++;
    }
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
    unsigned seed = argc > 2 ? std::atoi(argv[2]) : 0;
    libraries.crc32c_extend = crc_of_bytes;
    Crew crew;
    std::vector<std::thread> helpers;
    for (int k = 0; k < THREADS; k++) helpers.emplace_back([&] { crew.serve(); });
    std::atomic<int64_t> batches{0};
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    int64_t stores = 0;
    for (; stores == 0 || std::chrono::steady_clock::now() < until; stores++) {
        World world;
        std::vector<std::thread> threads;
        for (int k = 0; k < CALLERS; k++)
            threads.emplace_back([&, k, caller = seed + k] { gather_until_done(world, crew, caller, batches); });
        std::mt19937 random(seed += CALLERS);
        world.write(random);
        for (std::thread& thread : threads) thread.join();
    }
    crew.end();
    for (std::thread& helper : helpers) helper.join();
    std::printf("threads_gather: %lld batches from %lld stores\n", static_cast<long long>(batches), static_cast<long long>(stores));
}
