// Chunks that are changed at random, their checksums right, for the decoders of untrusted bytes; built and run by `make sanitize`.
//
//     fuzz_codec ITERATIONS [SEED]
//
// Chunk, target and scratch are arrays of exactly the sizes that the decoders are told, so that AddressSanitizer sees a byte too far.
// What a chunk decodes to must not depend on what was in the target before, and its first rows are those of the whole chunk.
#include <algorithm>
#include <memory>
#include <vector>

#include "hostile_chunks.hpp"
#include "lz4.hpp"
#include "recoding.hpp"

namespace {

class Fuzzer : public Hostile {
  public:
    using Hostile::Hostile;

    void run() {
        switch (below(8)) {
            case 0: return decode_pictures();
            case 1: return recode();
            case 2: return decode_block();
            default: return decode_chunk();
        }
    }

  private:
    size_t some_size() {
        static const size_t sizes[] = {1, 7, 31, 32, 33, 128, 300, 1000, 4488};
        return sizes[below(std::size(sizes))];
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
        const Bytes chunk = hostile_picture(width, height);
        const std::unique_ptr<uint8_t[]> target(new uint8_t[row_bytes]);
        const int wrong = decode_picture(chunk.data(), chunk.size(), width, height, target.get(), {get_info, decode_into});
        (wrong ? refused : decoded)++;
        Bytes out(chunk.size());
        const Entry entry{0, static_cast<int64_t>(chunk.size())};
        Entry moved{};
        if (chunk.size() <= PICTURE_HEADER + row_bytes + CHECKSUM) out.shrink_to_fit();
        copy_pictures(chunk.data(), &entry, 1, row_bytes, out.data(), &moved);
    }
};

}  // namespace

int main(int count, char** arguments) { return run_fuzzer<Fuzzer>("fuzz_codec", count, arguments); }
