// Shards whose indices, lengths and chunks are changed at random, for all that plans, gathers, sends and seals; run by `make sanitize`.
//
//     fuzz_shards ITERATIONS [SEED]
//
// Each file, tail, batch and scratch is an array of its exact size, so that AddressSanitizer sees a byte too far. A batch that could be
// read must be the same whatever was in its memory before, in however many parts, have the rows that its chunks decode to, and be the same
// where it was sent as it is stored and gathered elsewhere.
#include <algorithm>
#include <memory>
#include <vector>

#include "byte_ranges.hpp"
#include "checksums.hpp"
#include "gather.hpp"
#include "hostile_chunks.hpp"
#include "plan.hpp"
#include "recoding.hpp"
#include "stored_parts.hpp"

namespace {

constexpr int64_t STREAMS = 2, SALT = 12345, TAIL_ROWS = 8;
enum Column : int64_t { FLAT, PACKED, PICTURES, CHECKSUMS, COLUMNS };
constexpr uint8_t WIDTH = 3, HEIGHT = 2;
constexpr int64_t ROW_BYTES_OF[COLUMNS] = {5, 0, 3 * WIDTH * HEIGHT, ROW_CHECKSUM};  // that of PACKED differs

const uint8_t* memory_ends[2];  // of the files that a batch may ask the system for

}  // namespace

// Stand in for the system's: pages that are asked for must be some of those that files lie in.
extern "C" int madvise(void* at, size_t size, int) noexcept {
    const auto* begin = static_cast<const uint8_t*>(at);
    require(size > 0 && begin + 64 > memory_ends[0] && begin + size < memory_ends[1] + 64, "pages were asked for that have no file");
    return 0;
}

namespace {

// Two streams in files of one or two lanes.
struct World {
    int64_t segment_rows = 0, lanes = 0;
    int64_t segments, chunk_rows, row_bytes;  // segments of each stream
    std::vector<int64_t> starts[STREAMS];
    std::vector<Segment> segment_lists[STREAMS];
    std::vector<LeadIn> lead_ins[STREAMS];
    Stream streams[STREAMS];
    std::vector<Bytes> files;  // (columns, files)
    Bytes tails[COLUMNS];

    int64_t n_files() const { return STREAMS * segments / lanes; }
    int64_t row_bytes_of(int64_t column) const { return column == PACKED ? row_bytes : ROW_BYTES_OF[column]; }
    int64_t chunk_rows_of(int64_t column) const { return column == PACKED ? chunk_rows : column == PICTURES; }
    int64_t chunks_of(int64_t column) const { return (segment_rows + chunk_rows_of(column) - 1) / chunk_rows_of(column); }
    int64_t index_bytes(int64_t column) const { return chunks_of(column) * lanes * static_cast<int64_t>(sizeof(Entry)); }
    Bytes& file(int64_t column, int64_t number) { return files[column * n_files() + number]; }
};

class Fuzzer : public Hostile {
  public:
    using Hostile::Hostile;

    void run() {
        if (turn_++ % 16 == 0) make_world();
        mutate();
        if (!has_steps()) return;
        make_batch();
        gather_all();
        if (below(2)) send_parts();
        if (below(4) == 0) find_bytes();
        if (below(8) == 0) seal();
    }

  private:
    // The store

    void make_world() {
        World& w = world_;
        w = {};
        w.segment_rows = 8 << below(3), w.lanes = 1 + below(2);
        w.segments = 2, w.chunk_rows = 1 << below(4), w.row_bytes = 1 + (below(2) ? below(8) : below(64));
        std::vector<int64_t> slots(STREAMS * w.segments);
        for (size_t k = 0; k < slots.size(); k++) slots[k] = k;
        std::shuffle(slots.begin(), slots.end(), random_);
        const int64_t rows = w.segments * w.segment_rows;
        w.files.resize(COLUMNS * w.n_files());
        for (int64_t column = 0; column < COLUMNS; column++) {
            w.tails[column] = contents(STREAMS * TAIL_ROWS * w.row_bytes_of(column));
            for (int64_t f = 0; f < w.n_files(); f++) {
                if (w.chunk_rows_of(column) == 0)
                    w.file(column, f) = contents(w.lanes * w.segment_rows * w.row_bytes_of(column));
                else
                    make_shard(column, f);
                w.file(column, f).shrink_to_fit();
            }
        }
        for (int64_t s = 0; s < STREAMS; s++) {
            const int64_t first = below(5) * w.segment_rows;
            for (int64_t k = 0; k < w.segments; k++)
                w.segment_lists[s].push_back({first + k * w.segment_rows, slots[s * w.segments + k]});
            Stream& stream = w.streams[s];
            stream.low = first + below(w.segment_rows);
            stream.floor = stream.low + below(3);
            stream.head = std::max<int64_t>(stream.floor, first + below(rows));
            for (int64_t at = stream.floor; at <= stream.head; at += 1 + below(20)) w.starts[s].push_back(at);
            if (below(2)) w.lead_ins[s].push_back({w.starts[s].back(), std::max<int64_t>(stream.low, w.starts[s].back() - 2)});
            stream = {stream.head, 0, stream.low, stream.floor, static_cast<int64_t>(w.starts[s].size()), w.starts[s].data(), w.segments,
                      w.segment_lists[s].data(), static_cast<int64_t>(w.lead_ins[s].size()), w.lead_ins[s].data(), 0, s, 0, 0, 0, 0};
            put_row_checksums(s, first);
        }
    }

    Bytes hostile_chunk(int64_t column) {
        return column == PICTURES ? hostile_picture(WIDTH, HEIGHT) : hostile(world_.chunk_rows * world_.row_bytes);
    }

    Bytes some_chunk(int64_t column) {
        if (below(128) == 0) return hostile_chunk(column);
        Bytes chunk = column == PICTURES ? contents(PICTURE_HEADER + world_.row_bytes_of(PICTURES))
                      : below(2)         ? some_sealed(world_.chunk_rows * world_.row_bytes)
                                         : stored_chunk();
        put_checksum(chunk);
        return chunk;
    }

    Bytes stored_chunk() {
        const Bytes rows = contents(world_.chunk_rows * world_.row_bytes);
        Bytes chunk(HEADER + rows.size());
        blosc_compress(0, 0, 1, rows.size(), rows.data(), chunk.data(), chunk.size(), "", rows.size(), 1);
        return chunk;
    }

    void make_shard(int64_t column, int64_t number) {
        Bytes& file = world_.file(column, number);
        std::vector<Entry> entries;
        for (int64_t k = 0; k < world_.chunks_of(column) * world_.lanes; k++) {
            const Bytes chunk = some_chunk(column);
            entries.push_back({static_cast<int64_t>(file.size()), static_cast<int64_t>(chunk.size())});
            file.insert(file.end(), chunk.begin(), chunk.end());
        }
        if (below(4)) file.resize((file.size() + 15) / 16 * 16);  // or the index is not aligned
        const auto* index = reinterpret_cast<const uint8_t*>(entries.data());
        file.insert(file.end(), index, index + world_.index_bytes(column));
    }

    // Write the checksums of rows whose chunks are stored as they are.
    void put_row_checksums(int64_t s, int64_t first) {
        World& w = world_;
        const Target target = target_of(PACKED, 0, 1, nullptr);
        for (int64_t row = 0; row < w.segments * w.segment_rows; row++) {
            const int64_t slot = w.segment_lists[s][row / w.segment_rows].number, file = slot / w.lanes, lane = slot % w.lanes;
            const int64_t in_segment = row % w.segment_rows;
            const Source source = source_of(PACKED, file);
            const Shard shard(target, source);
            const Entry entry = load<Entry>(shard.entry_at(target, lane, in_segment / w.chunk_rows));
            if (!reads_rows(target, entry.size, 0)) continue;
            const uint8_t* bytes = shard.chunk(entry) + HEADER + in_segment % w.chunk_rows * w.row_bytes;
            const uint32_t crc = crc32c(row_seed(SALT, s, first + row, 0), bytes, w.row_bytes);
            uint8_t* sums = w.file(CHECKSUMS, file).data();
            store(sums + (lane * w.segment_rows + in_segment) * ROW_CHECKSUM, pad(crc, w.row_bytes));
        }
    }

    Source source_of(int64_t column, int64_t file) {
        Bytes& bytes = world_.file(column, file);
        return {reinterpret_cast<uintptr_t>(bytes.data()), static_cast<int64_t>(bytes.size())};
    }

    void mutate() {
        World& w = world_;
        const int64_t column = below(3) ? PACKED : PICTURES;
        Bytes& file = w.file(column, below(w.n_files()));
        const int64_t end = file.size() - w.index_bytes(column);
        uint8_t* entry = file.data() + end + below(w.index_bytes(column) / sizeof(Entry)) * sizeof(Entry);
        switch (below(8)) {
            case 0: {  // a length: rows were added, or are missing
                Stream& stream = w.streams[below(STREAMS)];
                const int64_t most = (stream.low / w.segment_rows + w.segments) * w.segment_rows - 1;
                stream.head = stream.starts[stream.episodes - 1] + below(most + 1 - stream.starts[stream.episodes - 1]);
                break;
            }
            case 1: {
                Bytes& sums = w.file(CHECKSUMS, below(w.n_files()));
                sums[below(sums.size())] ^= 1 << below(8);
                break;
            }
            case 2:  // bytes of chunks
                for (uint64_t n = below(4); n > 0 && end > 0; n--) file[below(end)] = static_cast<uint8_t>(random_());
                break;
            case 3: {  // a chunk that is changed, its checksum right
                const Bytes chunk = hostile_chunk(column);
                if (static_cast<int64_t>(chunk.size()) > end) break;
                const Entry moved{static_cast<int64_t>(below(end - chunk.size() + 1)), static_cast<int64_t>(chunk.size())};
                std::copy(chunk.begin(), chunk.end(), file.begin() + moved.offset);
                store(entry, moved);
                break;
            }
            case 4: store(entry, Entry{Entry::EMPTY, Entry::EMPTY}); break;
            case 5: store(entry, load<Entry>(file.data() + end + below(w.index_bytes(column) / sizeof(Entry)) * sizeof(Entry))); break;
            default: {
                const int64_t telling[] = {Entry::EMPTY, INT64_MIN, INT64_MAX, INT64_MAX - end, 0, 1, end, static_cast<int64_t>(file.size()),
                                           -end, 3, CHECKSUM, HEADER, HEADER + CHECKSUM, HEADER + w.chunk_rows * w.row_bytes + CHECKSUM};
                int64_t value = telling[below(std::size(telling))];
                if (below(2)) value = static_cast<int64_t>(static_cast<uint64_t>(value) + below(5) - 2);
                store(entry + 8 * below(2), below(8) ? value : static_cast<int64_t>(random_()));
            }
        }
    }

    // The batch

    Target target_of(int64_t column, int64_t skip, int64_t rows, uint8_t* out) {
        const World& w = world_;
        Target target{};
        target.column = column, target.row_bytes = w.row_bytes_of(column), target.skip = skip, target.rows = rows, target.out = out;
        target.chunk_rows = w.chunk_rows_of(column), target.chunks = target.chunk_rows ? w.chunks_of(column) : 0;
        target.tail = w.tails[column].data(), target.tail_rows = TAIL_ROWS;
        target.zeros = skip & 1, target.flag = column == FLAT, target.checksums = column == PACKED ? int64_t{CHECKSUMS} : -1, target.salt = SALT;
        if (column == PICTURES) target.height = HEIGHT, target.width = WIDTH, target.webp = {get_info, decode_into};
        target.lanes = w.lanes, target.lane_rows = w.segment_rows;
        return target;
    }

    // Draw a step, of an episode that has any: its stream and position, and the first and the last row of its episode.
    void draw_step(int64_t* number, int64_t* position, int64_t* start, int64_t* last) {
        do {
            *number = below(STREAMS);
            const Stream& stream = world_.streams[*number];
            const int64_t episode = below(stream.episodes);
            *start = stream.starts[episode], *last = last_row(stream, episode);
        } while (*last == *start);
        *position = *start + below(*last - *start);
    }

    bool has_steps() const {
        return std::any_of(world_.streams, world_.streams + STREAMS, [](const Stream& stream) { return steps_of(stream) > 0; });
    }

    void make_batch() {
        const World& w = world_;
        const Table table{w.streams, STREAMS};
        n_ = 1 + below(5), rows_ = 1 + below(6);
        std::vector<int64_t> places(4 * n_);
        int64_t* at = places.data();
        for (int64_t i = 0; i < n_; i++) draw_step(at + i, at + n_ + i, at + 2 * n_ + i, at + 3 * n_ + i);
        const Windows windows{at, at + n_, at + 2 * n_, at + 3 * n_, n_, static_cast<int64_t>(below(std::max<int64_t>(rows_ - 1, 1))), rows_};
        mapped_.clear();
        for (int64_t column = 0; column < COLUMNS; column++)
            for (int64_t f = 0; f < w.n_files(); f++) mapped_.push_back(source_of(column, f));
        const StoreFiles store{mapped_.data(), w.n_files(), 0, w.lanes};
        const MappedFiles files{&store, 1, COLUMNS, w.segment_rows};
        PlanMemory memory;
        Batch batch{};
        require(plan_windows(table, files, windows, 0, memory, batch), "a step was evicted, or a file is not mapped");
        runs_.assign(batch.runs, batch.runs + batch.n_runs);
        runs_.shrink_to_fit();
        sources_.assign(batch.sources, batch.sources + batch.n_runs * COLUMNS);
        targets_.clear();
        for (int64_t column = FLAT; column <= PICTURES; column++)
            targets_.push_back(target_of(column, 0, std::max<int64_t>(rows_ - 1, 1), nullptr));
        for (int64_t column = FLAT; column <= PICTURES && rows_ > 1; column++) targets_.push_back(target_of(column, 1, rows_ - 1, nullptr));
    }

    using Outs = std::vector<std::unique_ptr<uint8_t[]>>;

    Batch batch(std::vector<Target>& targets) { return {targets.data(), 1, static_cast<int64_t>(targets.size()), runs_.data(),
                                                        static_cast<int64_t>(runs_.size()), sources_.data(), COLUMNS}; }

    size_t bytes_of(const Target& target) const { return n_ * target.rows * target.row_bytes; }

    // Gather a batch into new memory, filled with a byte before.
    int gather(Batch batch, uint8_t before, int64_t parts, Outs& outs) {
        std::vector<Target> targets(batch.targets, batch.targets + batch.n_targets);
        outs.clear();
        for (Target& target : targets) {
            outs.emplace_back(new uint8_t[bytes_of(target)]);
            std::memset(outs.back().get(), before, bytes_of(target));
            target.out = outs.back().get();
        }
        batch.targets = targets.data();
        const int64_t largest = std::max(world_.chunk_rows * world_.row_bytes, world_.row_bytes_of(PICTURES));
        const std::unique_ptr<uint8_t[]> scratch(new uint8_t[2 * largest]);
        SharedBatch shared{batch, parts, {}};
        gather_parts(shared, {scratch.get(), largest});
        const int reason = shared.progress.reason;
        require(reason >= NOTHING_WRONG && reason <= BAD_PICTURE, "a failure has no type");
        return reason;
    }

    // Require rows of windows that a run has to be the same; what lies before an episode is in none.
    void require_equal(const Outs& first, const Outs& second, const char* what) {
        if (LIBLZ4_COPIES_NOTHING) return;
        for (size_t t = 0; t < targets_.size(); t++)
            for (const Run& run : runs_)
                for (int64_t row = std::max<int64_t>(run.at - run.pad, targets_[t].skip); row < run.at + run.count; row++) {
                    const Target& target = targets_[t];
                    if (row >= target.skip + target.rows || (row < run.at && run.at + run.count <= target.skip)) continue;
                    const int64_t at = (run.sample * target.rows + row - target.skip) * target.row_bytes;
                    require(std::equal(&first[t][at], &first[t][at] + target.row_bytes, &second[t][at]), what);
                }
    }

    void gather_all() {
        Outs first, second;
        const int reason = gather(batch(targets_), 0x55, 1, first);
        const int again = gather(batch(targets_), 0xAA, 1 + below(3), second);
        (reason ? refused : decoded)++;
        require((reason == NOTHING_WRONG) == (again == NOTHING_WRONG), "a batch is not always refused");
        if (reason != NOTHING_WRONG) return;
        require_equal(first, second, "a batch depends on what was in its memory");
        if (below(4) == 0) compare_with_chunks(first);
    }

    // Compare the rows of chunks with what each decodes to on its own.
    void compare_with_chunks(const Outs& outs) {
        for (size_t t = 0; t < targets_.size(); t++) {
            Target target = targets_[t];
            target.out = outs[t].get();
            for (size_t r = 0; target.chunk_rows && r < runs_.size(); r++) {
                const Run& run = runs_[r];
                const Wanted wanted = wanted_of(target, run);
                const Shard shard(target, sources_[r * COLUMNS + target.column]);
                for (int64_t k = 0; k < wanted.count; k++) {
                    const int64_t row = run.row + wanted.cut + k, chunk = row / target.chunk_rows;
                    const Entry entry = load<Entry>(shard.entry_at(target, run.lane, chunk));
                    Bytes rows(target.chunk_bytes()), scratch(target.chunk_bytes());
                    const uint8_t* expected = rows.data() + row % target.chunk_rows * target.row_bytes;
                    if (entry.is_empty())
                        expected = target.tail_row(run.stream, run.position + wanted.cut + k);
                    else if (!shard.contains(entry))
                        require(false, "a chunk outside of its file was read");
                    else if (target.width ? decode_picture(shard.chunk(entry), entry.size, WIDTH, HEIGHT, rows.data(), target.webp)
                                          : decode(shard.chunk(entry), entry.size, rows.size(), rows.size(), rows.data(), scratch.data()))
                        continue;  // its first rows may be fine
                    if (LIBLZ4_COPIES_NOTHING && !entry.is_empty()) continue;
                    const bool is_stored = !entry.is_empty() && reads_rows(target, entry.size, 0);
                    if (is_stored && load<BloscHeader>(shard.chunk(entry)).flags != MEMCPYED) continue;  // rows behind a false header
                    require(std::equal(expected, expected + target.row_bytes, wanted.out + k * target.row_bytes), "a row is another one's");
                }
            }
        }
    }

    // Take out what a batch reads, as `stored_parts.py` does, and gather it from there.
    void send_parts() {
        std::vector<Target> sent(targets_.begin(), targets_.begin() + 3);
        const Batch whole = batch(sent);
        const size_t n_runs = runs_.size();
        const bool changes = below(8) == 0;  // after it was listed
        std::vector<Bytes> blobs;
        std::vector<Source> sources(n_runs * COLUMNS);
        for (const Target& target : sent) {
            std::vector<int32_t> firsts(n_runs);
            int64_t end, before = 0;
            if (target.chunk_rows == 0) {
                end = list_rows(whole, target, firsts.data());
                blobs.emplace_back(end);
                copy_rows(whole, target, firsts.data(), blobs.back().data());
            } else {
                int64_t most = 0;
                for (const Run& run : runs_) most += run.count / target.chunk_rows + 2;
                std::vector<StoredChunk> chunks(most);
                const ChunkList list = list_chunks(whole, target, chunks.data(), firsts.data());
                if (list.n < 0) return;
                if (changes) mutate();
                before = (8 + target.skip) / target.chunk_rows + 2;
                const int64_t bound = HEADER + target.chunk_bytes() + CHECKSUM, room = (list.bytes + list.of_tail * bound + 7) / 8 * 8;
                blobs.emplace_back(room + (before + list.n) * sizeof(Entry));
                const std::unique_ptr<uint8_t[]> scratch(new uint8_t[2 * bound]);
                end = copy_chunks(whole, target, chunks.data(), list.n, blobs.back().data(), room, before, scratch.get());
                if (end < 0 || changes) return;
                blobs.back().resize(end + (before + list.n) * sizeof(Entry));
                blobs.back().shrink_to_fit();
            }
            const auto at = reinterpret_cast<uintptr_t>(blobs.back().data());
            for (size_t r = 0; r < n_runs; r++) {
                const Run& run = runs_[r];
                const Wanted wanted = wanted_of(target, run);
                Source& source = sources[r * COLUMNS + target.column];
                if (target.chunk_rows == 0) {
                    source = {at + firsts[r] - (run.row % 8 + wanted.cut) * target.row_bytes, end};
                } else {
                    const int64_t chunk = wanted.count > 0 ? (run.row % 8 + wanted.cut) / target.chunk_rows : 0;
                    const int64_t limit = end + (before + firsts[r] - chunk) * static_cast<int64_t>(sizeof(Entry));
                    source = {at, limit + target.chunks * static_cast<int64_t>(sizeof(Entry))};
                }
            }
        }
        Outs here, there;
        for (Target& target : sent) target.checksums = -1;  // a header that lies makes other rows than those which have these
        if (gather(whole, 0, 1, here) != NOTHING_WRONG) return;
        std::vector<Run> runs = runs_;
        for (Run& run : runs) run = {0, 0, run.row % 8, run.count, run.sample, run.at, run.pad, 0, 0, 0};
        for (Target& target : sent) target.lanes = 1;
        const int reason = gather({sent.data(), 1, 3, runs.data(), whole.n_runs, sources.data(), COLUMNS}, 0xFF, 1, there);
        if (reason != NOTHING_WRONG) return;
        targets_.resize(3);
        require_equal(here, there, "what was sent is not what was stored");
    }

    void find_bytes() {
        // Copies of the files, one after the other, so that all pages that may be asked for lie between two addresses.
        std::vector<size_t> at;
        size_t total = 0;
        constexpr int64_t BLOCK = 32;
        for (const Source& source : mapped_) at.push_back(total), total += (source.size + 7) / 8 * 8 + source.size / BLOCK / 8 * 8 + 8;
        const std::unique_ptr<uint8_t[]> memory(new uint8_t[total]);
        for (size_t k = 0; k < total; k++) memory[k] = static_cast<uint8_t>(below(2));
        std::vector<Source> copies, sources(sources_.size());
        for (size_t k = 0; k < mapped_.size(); k++) {
            copies.push_back({reinterpret_cast<uintptr_t>(&memory[at[k]]), mapped_[k].size});
            std::copy_n(mapped_[k].at(0), mapped_[k].size, &memory[at[k]]);
        }
        const StoreFiles store{copies.data(), world_.n_files(), 0, world_.lanes};
        find_sources({&store, 1, COLUMNS, world_.segment_rows}, runs_.data(), runs_.size(), sources.data());
        Batch whole = batch(targets_);
        whole.sources = sources.data();
        memory_ends[0] = memory.get(), memory_ends[1] = memory.get() + total;
        request_pages(whole, 64);
        std::vector<MissingBlock> missing(1 + below(8));
        const int64_t n = find_missing_blocks(whole, BLOCK, below(2), missing.data(), missing.size());
        for (int64_t k = 0; k < std::min<int64_t>(n, missing.size()); k++) {
            const MissingBlock& each = missing[k];
            const int64_t size = world_.file(each.column, each.file).size();
            require(each.block >= 0 && each.block * BLOCK < size, "a block is behind its file");
        }
    }

    // Compress a live shard again, as `shard.py` does: an index that points outside of the file was refused before.
    void seal() {
        World& w = world_;
        const int64_t column = below(2) ? PACKED : PICTURES, number = below(w.n_files());
        const Target target = target_of(column, 0, 1, nullptr);
        const Source source = source_of(column, number);
        const Shard shard(target, source);
        const int64_t n = target.chunks * target.lanes, chunk_bytes = target.chunk_bytes();
        std::vector<Entry> entries(n), moved(n);
        std::memcpy(entries.data(), source.at(shard.end), w.index_bytes(column));
        for (const Entry& entry : entries)
            if (!shard.contains(entry)) return;
        Bytes out(n * (HEADER + chunk_bytes + CHECKSUM));
        int64_t size;
        if (column == PICTURES) {
            size = copy_pictures(source.at(0), entries.data(), n, chunk_bytes, out.data(), moved.data());
        } else {
            const auto workspace = std::make_unique<uint64_t[]>(workspace_bytes(chunk_bytes) / 8 + 1);
            Stored stored{static_cast<int64_t>(below(3)), 0};
            const Method method{below(4) ? "copy" : below(2) ? "lz4" : "pictures", 1, 1, {1, 3, w.row_bytes}};
            size = recode_chunks(source.at(0), entries.data(), n, chunk_bytes, method, *reinterpret_cast<Workspace*>(workspace.get()),
                                 stored, out.data(), moved.data());
        }
        require(size >= -n && size <= static_cast<int64_t>(out.size()), "a failure has no type");
        for (int64_t k = 0, end = 0; size >= 0 && k < n; end += moved[k++].size)
            require(moved[k].offset == end && moved[k].size > 0 && moved[k].size <= entries[k].size, "a chunk is not where its entry says");
    }

    World world_{};
    uint64_t turn_ = 0;
    int64_t n_ = 0, rows_ = 0;  // samples of a batch, and rows of a window
    std::vector<Run> runs_;
    std::vector<Source> mapped_, sources_;
    std::vector<Target> targets_;
};

}  // namespace

int main(int count, char** arguments) { return run_fuzzer<Fuzzer>("fuzz_shards", count, arguments); }
