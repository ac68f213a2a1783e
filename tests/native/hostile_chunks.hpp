// Chunks that are changed at random, their checksums right, and stand-ins for what decodes them: for the fuzzers of untrusted bytes.
//
// liblz4 is LZ4's own source where LZ4 names its directory; otherwise, as c-blosc and libwebp always, it is a stand-in.
#pragma once

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
#include "lz4_encoder.hpp"
#include "memory.hpp"
#include "picture_chunks.hpp"

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

int blosc_compress(int, int, size_t, size_t size, const void* source, void* target, size_t room, const char*, size_t block, int) {
    if (room < HEADER + size) return 0;
    const auto bytes = static_cast<uint32_t>(size);
    store(target, BloscHeader{2, 1, MEMCPYED, 1, bytes, static_cast<uint32_t>(block), static_cast<uint32_t>(HEADER) + bytes});
    std::memcpy(static_cast<uint8_t*>(target) + HEADER, source, size);
    return static_cast<int>(HEADER + size);
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

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

// Makes chunks, and changes them.
class Hostile {
  public:
    explicit Hostile(uint64_t seed) : random_(seed) {}

    uint64_t decoded = 0, refused = 0;

  protected:
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

    Bytes hostile_picture(uint8_t width, uint8_t height) {
        const size_t row_bytes = 3u * width * height;
        Bytes chunk = contents(below(3) ? PICTURE_HEADER + 3 + below(row_bytes + 4) : PICTURE_HEADER + row_bytes);
        if (below(2)) chunk[PICTURE_HEADER] = width, chunk[PICTURE_HEADER + 1] = height;
        change(chunk, 0);
        if (below(20)) put_checksum(chunk);
        chunk.shrink_to_fit();
        return chunk;
    }

    std::mt19937_64 random_;
    std::map<size_t, std::vector<Bytes>> sealed_;  // by bytes of their rows
    std::unique_ptr<PictureEncoder> encoder_ = std::make_unique<PictureEncoder>();
};

// Run a fuzzer, as `NAME ITERATIONS [SEED]` says.
template <typename Fuzzer>
int run_fuzzer(const char* name, int count, char** arguments) {
    const uint64_t iterations = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 100'000;
    const uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : std::random_device()();
    fill_crc32c_table();
    libraries = {plain_crc32c, blosc_decompress, blosc_compress, LZ4_decompress_safe_partial};
    std::printf("%s: %llu iterations, seed %llu\n", name, static_cast<unsigned long long>(iterations),
                static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    Fuzzer fuzzer(seed);
    for (uint64_t i = 0; i < iterations; i++) fuzzer.run();
    std::printf("%llu decoded, %llu refused\n", static_cast<unsigned long long>(fuzzer.decoded),
                static_cast<unsigned long long>(fuzzer.refused));
    return 0;
}

}  // namespace
