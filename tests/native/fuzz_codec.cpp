// Chunks that are changed at random, their checksums right, for the decoders of untrusted bytes; built and run by `make sanitize`.
//
//     fuzz_codec ITERATIONS [SEED]
//
// Chunk, target and scratch are arrays of exactly the sizes that the decoders are told, so that AddressSanitizer sees a byte too far.
// What a chunk decodes to must not depend on what was in the target before, and its first rows are those of the whole chunk.
//
// liblz4 is LZ4's own source where LZ4 names its directory; otherwise, as c-blosc and libwebp always, it is a stand-in.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "codec.hpp"
#include "libraries.hpp"
#include "lz4.hpp"
#include "lz4_encoder.hpp"
#include "memory.hpp"
#include "picture_chunks.hpp"
#include "recoding.hpp"

#ifdef WITH_LZ4
extern "C" int LZ4_decompress_safe_partial(const char* source, char* target, int size, int wanted, int room);
constexpr bool LIBLZ4_COPIES_NOTHING = true;  // at a match of distance 0, which it lets pass: what was in the target stays there
#else
constexpr bool LIBLZ4_COPIES_NOTHING = false;
#endif

namespace {

using namespace diskbuffer;
using Bytes = std::vector<uint8_t>;

uint32_t crc32c_table[256];

uint32_t plain_crc32c(uint32_t crc, const uint8_t* data, size_t size) {
    crc = ~crc;
    for (size_t i = 0; i < size; i++) crc = crc32c_table[(crc ^ data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

void fill_crc32c_table() {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        crc32c_table[i] = crc;
    }
}

// Decode the first bytes of a block of LZ4, byte by byte, as the format is described; negative if it is malformed before they are there.
int64_t decode_by_the_format(const uint8_t* block, int64_t size, uint8_t* target, int64_t wanted) {
    int64_t at = 0, out = 0;
    const auto length = [&](int64_t bits) -> int64_t {
        int64_t total = bits;
        for (int64_t more = bits == 15 ? 255 : 0; more == 255; total += more) {
            if (at >= size) return -1;
            more = block[at++];
        }
        return total;
    };
    while (at < size && out < wanted) {
        const int token = block[at++];
        const int64_t literals = length(token >> 4);
        if (literals < 0 || literals > size - at) return -1;
        const int64_t copied = std::min(literals, wanted - out);
        std::copy_n(block + at, copied, target + out);
        at += literals, out += copied;
        if (at == size || out == wanted) break;
        if (size - at < 2) return -1;
        const int64_t distance = block[at] | block[at + 1] << 8;
        at += 2;
        int64_t matched = length(token & 15);
        if (matched < 0 || distance == 0 || distance > out) return -1;
        for (matched = std::min(matched + 4, wanted - out); matched > 0; matched--, out++) target[out] = target[out - distance];
    }
    return out;
}

#ifndef WITH_LZ4
int LZ4_decompress_safe_partial(const char* source, char* target, int size, int wanted, int room) {
    return static_cast<int>(decode_by_the_format(reinterpret_cast<const uint8_t*>(source), size, reinterpret_cast<uint8_t*>(target),
                                                 std::min(wanted, room)));
}
#endif

// Stand in for Blosc's other compressors: touch all of the chunk and of the target.
int blosc_decompress(const void* source, void* target, size_t room, int) {
    const auto header = load<BloscHeader>(source);
    const uint32_t sum = plain_crc32c(0, static_cast<const uint8_t*>(source), header.compressed_bytes);
    std::memset(target, static_cast<int>(sum & 255), room);
    return header.flags & 8 ? -1 : static_cast<int>(room);
}

// Stand in for libwebp: a file begins with its width and its height.
int get_info(const uint8_t* file, size_t size, int* width, int* height) {
    if (size < 2) return 0;
    *width = file[0], *height = file[1];
    return 1;
}

uint8_t* decode_into(const uint8_t* file, size_t size, uint8_t* target, size_t room, int line_bytes) {
    if (size < 3 || room != static_cast<size_t>(line_bytes) * file[1]) return nullptr;
    std::memset(target, file[size - 1], room);
    return target;
}

class Fuzzer {
  public:
    explicit Fuzzer(uint64_t seed) : random_(seed) {}

    void run() {
        switch (below(8)) {
            case 0: return decode_pictures();
            case 1: return recode();
            case 2: return decode_block();
            default: return decode_chunk();
        }
    }

    uint64_t decoded = 0, refused = 0;

  private:
    uint64_t below(uint64_t limit) { return random_() % limit; }

    // Return bytes that repeat what came before, at the distances of pictures, between noise.
    Bytes contents(size_t size) {
        static const size_t distances[] = {1, 2, 3, 7, 8, 9, 15, 16, 33, 63, 64, 65, 100, 288};
        const size_t colours = below(2) ? 256 : 3, typical = below(2) ? 10 : 300;
        Bytes bytes(size);
        for (size_t at = 0; at < size;) {
            for (size_t n = below(12); n > 0 && at < size; n--) bytes[at++] = static_cast<uint8_t>(below(colours));
            const size_t distance = distances[below(std::size(distances))];
            for (size_t n = below(typical); n > 0 && at < size && distance <= at; n--, at++) bytes[at] = bytes[at - distance];
        }
        return bytes;
    }

    size_t some_size() {
        static const size_t sizes[] = {1, 7, 31, 32, 33, 128, 300, 1000, 4488};
        return sizes[below(std::size(sizes))];
    }

    void change(Bytes& bytes, size_t begin) {
        static const uint8_t telling[] = {0, 1, 14, 15, 16, 0x1F, 0x7F, 0x80, 0xF0, 0xFF};
        for (uint64_t n = below(4); n > 0 && bytes.size() > begin; n--) {
            const size_t at = begin + below(below(2) ? bytes.size() - begin : std::min<size_t>(bytes.size() - begin, 40));
            bytes[at] = below(2) ? telling[below(std::size(telling))] : static_cast<uint8_t>(random_());
        }
        if (below(8) == 0) bytes.resize(begin + below(bytes.size() - begin + 1));
    }

    static void put_checksum(Bytes& chunk) {
        uint8_t checksum[CHECKSUM];
        store(checksum, plain_crc32c(0, chunk.data(), chunk.size()));
        chunk.insert(chunk.end(), checksum, checksum + CHECKSUM);
    }

    // Return the chunk that sealing makes of contents, without its checksum.
    Bytes sealed(const Bytes& rows) {
        Bytes chunk(HEADER + 8 + rows.size());
        const int64_t room = static_cast<int64_t>(rows.size()) - 1;
        const int64_t size = encoder_->encode(rows.data(), rows.size(), chunk.data() + HEADER + 8, room, {1, 33, 300});
        BloscHeader header{2, 1, LZ4 << 5, 1, static_cast<uint32_t>(rows.size()), static_cast<uint32_t>(rows.size()), 0};
        if (size > 0) {
            store(chunk.data() + HEADER, static_cast<uint32_t>(HEADER + 4));
            store(chunk.data() + HEADER + 4, static_cast<uint32_t>(size));
            chunk.resize(HEADER + 8 + size);
        } else {
            header.flags |= MEMCPYED;
            chunk.resize(HEADER);
            chunk.insert(chunk.end(), rows.begin(), rows.end());
        }
        header.compressed_bytes = static_cast<uint32_t>(chunk.size());
        store(chunk.data(), header);
        return chunk;
    }

    // Return one of some chunks, of which some are replaced now and then: making one takes ten times as long as decoding it.
    const Bytes& some_sealed(size_t chunk_bytes) {
        std::vector<Bytes>& chunks = sealed_[chunk_bytes];
        if (chunks.size() < 64)
            chunks.push_back(sealed(contents(chunk_bytes)));
        else if (below(16) == 0)
            chunks[below(chunks.size())] = sealed(contents(chunk_bytes));
        return chunks[below(chunks.size())];
    }

    Bytes hostile(size_t chunk_bytes) {
        Bytes chunk = some_sealed(chunk_bytes);
        change(chunk, below(3) ? std::min<size_t>(chunk.size(), HEADER + 8) : 0);
        if (chunk.size() >= HEADER && below(20)) {  // or nothing that was cut would get past the header
            auto header = load<BloscHeader>(chunk.data());
            header.bytes = static_cast<uint32_t>(chunk_bytes), header.compressed_bytes = static_cast<uint32_t>(chunk.size());
            store(chunk.data(), header);
            if (chunk.size() >= HEADER + 8 && below(2)) {
                const auto rest = static_cast<uint32_t>(chunk.size() - HEADER - 8);
                store(chunk.data() + HEADER + 4, below(8) ? rest : rest + static_cast<uint32_t>(below(9)) - 4);
            }
        }
        put_checksum(chunk);
        chunk.shrink_to_fit();
        return chunk;
    }

    int decode_to(const Bytes& chunk, size_t chunk_bytes, size_t wanted, uint8_t before, std::unique_ptr<uint8_t[]>& target) {
        target.reset(new uint8_t[wanted]);
        std::memset(target.get(), before, wanted);
        const std::unique_ptr<uint8_t[]> scratch(new uint8_t[chunk_bytes]);
        return decode(chunk.data(), chunk.size(), chunk_bytes, wanted, target.get(), scratch.get());
    }

    void decode_chunk() {
        const size_t chunk_bytes = some_size(), wanted = below(2) ? chunk_bytes : below(chunk_bytes + 1);
        const Bytes chunk = hostile(chunk_bytes);
        std::unique_ptr<uint8_t[]> first, second, whole;
        const int wrong = decode_to(chunk, chunk_bytes, wanted, 0x55, first);
        (wrong ? refused : decoded)++;
        require(decode_to(chunk, chunk_bytes, wanted, 0xAA, second) == wrong, "a chunk is not always refused");
        if (wrong) return;
        if (LIBLZ4_COPIES_NOTHING && chunk.size() * 4 > chunk_bytes) return;
        require(std::equal(first.get(), first.get() + wanted, second.get()), "what was not decoded came out");
        if (decode_to(chunk, chunk_bytes, chunk_bytes, 0x55, whole) == 0)
            require(std::equal(first.get(), first.get() + wanted, whole.get()), "the first rows are not those of the whole chunk");
    }

    void decode_block() {
        const Bytes rows = contents(some_size());
        Bytes block(rows.size() + rows.size() / 255 + 16);
        block.resize(encoder_->encode(rows.data(), rows.size(), block.data(), block.size(), {1, 33, 300}));
        change(block, 0);
        block.shrink_to_fit();
        const size_t wanted = below(2) ? rows.size() : below(rows.size() + 200);
        const std::unique_ptr<uint8_t[]> ours(new uint8_t[wanted]), plain(new uint8_t[wanted]);
        const int64_t size = decode_lz4(block.data(), block.size(), ours.get(), wanted);
        const int64_t expected = decode_by_the_format(block.data(), block.size(), plain.get(), wanted);
        require(size == expected || (size < 0 && expected < 0), "a block is decoded otherwise than the format says");
        if (size > 0) require(std::equal(ours.get(), ours.get() + size, plain.get()), "a block is decoded to other bytes");
        (size < 0 ? refused : decoded)++;
    }

    void recode() {
        const size_t chunk_bytes = some_size(), n = 1 + below(3);
        Bytes shard;
        std::vector<Entry> entries, moved(n);
        for (size_t i = 0; i < n; i++) {
            Bytes chunk = below(2) ? hostile(chunk_bytes) : some_sealed(chunk_bytes);
            if (chunk.size() < HEADER + CHECKSUM || below(2)) put_checksum(chunk);
            entries.push_back({static_cast<int64_t>(shard.size()), static_cast<int64_t>(chunk.size())});
            shard.insert(shard.end(), chunk.begin(), chunk.end());
        }
        shard.shrink_to_fit();
        const auto workspace = std::make_unique<uint64_t[]>(workspace_bytes(chunk_bytes) / 8 + 1);
        Stored stored{static_cast<int64_t>(below(3)), 0};
        Bytes out(n * (HEADER + chunk_bytes + CHECKSUM));
        const Method method{below(3) ? "pictures" : "copy", 0, 1, {1, 33, 300}};
        const int64_t size = recode_chunks(shard.data(), entries.data(), n, chunk_bytes, method,
                                           *reinterpret_cast<Workspace*>(workspace.get()), stored, out.data(), moved.data());
        (size < 0 ? refused : decoded)++;
        if (size < 0) return;
        for (size_t i = 0; i < n; i++) {
            const Bytes before(shard.begin() + entries[i].offset, shard.begin() + entries[i].offset + entries[i].size);
            const Bytes after(out.begin() + moved[i].offset, out.begin() + moved[i].offset + moved[i].size);
            std::unique_ptr<uint8_t[]> first, second;
            const int wrong = decode_to(before, chunk_bytes, chunk_bytes, 0, first);  // of what is copied, the checksum alone was verified
            require(decode_to(after, chunk_bytes, chunk_bytes, 0, second) == wrong, "a sealed chunk is no longer what it was");
            require(wrong || std::equal(first.get(), first.get() + chunk_bytes, second.get()), "a sealed chunk has other rows");
        }
    }

    void decode_pictures() {
        const uint8_t width = 1 + below(9), height = 1 + below(9);
        const size_t row_bytes = 3u * width * height;
        Bytes chunk = contents(below(3) ? PICTURE_HEADER + 3 + below(row_bytes + 4) : PICTURE_HEADER + row_bytes);
        if (below(2)) chunk[PICTURE_HEADER] = width, chunk[PICTURE_HEADER + 1] = height;
        change(chunk, 0);
        if (below(20)) put_checksum(chunk);
        chunk.shrink_to_fit();
        const std::unique_ptr<uint8_t[]> target(new uint8_t[row_bytes]);
        const int wrong = decode_picture(chunk.data(), chunk.size(), width, height, target.get(), {get_info, decode_into});
        (wrong ? refused : decoded)++;
        Bytes out(chunk.size());
        const Entry entry{0, static_cast<int64_t>(chunk.size())};
        Entry moved{};
        if (chunk.size() <= PICTURE_HEADER + row_bytes + CHECKSUM) out.shrink_to_fit();
        copy_pictures(chunk.data(), &entry, 1, row_bytes, out.data(), &moved);
    }

    static void require(bool holds, const char* what) {
        if (holds) return;
        std::fprintf(stderr, "%s\n", what);
        std::abort();
    }

    std::mt19937_64 random_;
    std::map<size_t, std::vector<Bytes>> sealed_;  // by bytes of their rows
    std::unique_ptr<PictureEncoder> encoder_ = std::make_unique<PictureEncoder>();
};

}  // namespace

int main(int count, char** arguments) {
    const uint64_t iterations = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 100'000;
    const uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : std::random_device()();
    fill_crc32c_table();
    libraries = {plain_crc32c, blosc_decompress, nullptr, LZ4_decompress_safe_partial};
    std::printf("fuzz_codec: %llu iterations, seed %llu\n", static_cast<unsigned long long>(iterations), static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    Fuzzer fuzzer(seed);
    for (uint64_t i = 0; i < iterations; i++) fuzzer.run();
    std::printf("%llu decoded, %llu refused\n", static_cast<unsigned long long>(fuzzer.decoded),
                static_cast<unsigned long long>(fuzzer.refused));
}
