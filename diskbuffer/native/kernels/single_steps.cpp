#include "single_steps.hpp"

#include <algorithm>
#include <cstring>

#include "memory.hpp"

namespace diskbuffer {

namespace {

constexpr int64_t BLOCK = 256;  // steps whose places are found before they are copied
constexpr int64_t AHEAD = 8;    // how many steps before it is copied a row is brought into the caches

// Copy one row of each of `n` places, of BYTES bytes if that is not 0; return false where a file is not mapped.
template <int64_t BYTES>
bool copy_rows(const Source* files, const StepColumn& column, int64_t lane_rows, const Place* places, int64_t n, uint8_t* out) {
    const int64_t row_bytes = BYTES != 0 ? BYTES : column.row_bytes;
    const auto offset_of = [&](const Place& place) { return (place.lane * lane_rows + place.row) * row_bytes; };
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) prefetch(files[places[i + AHEAD].file].at(offset_of(places[i + AHEAD])));
        const Source& file = files[places[i].file];
        const int64_t offset = offset_of(places[i]);
        if (file.address == 0 || offset + row_bytes > file.size) return false;
        std::memcpy(out + i * row_bytes, file.at(offset), row_bytes);
    }
    if (column.flag != 0)
        for (int64_t k = 0; k < n * row_bytes; k++) out[k] = out[k] != 0;
    return true;
}

bool copy_column(const Source* files, const StepColumn& column, int64_t lane_rows, const Place* places, int64_t n, uint8_t* out) {
    switch (column.row_bytes) {
        case 1: return copy_rows<1>(files, column, lane_rows, places, n, out);
        case 4: return copy_rows<4>(files, column, lane_rows, places, n, out);
        case 8: return copy_rows<8>(files, column, lane_rows, places, n, out);
        case 16: return copy_rows<16>(files, column, lane_rows, places, n, out);
        default: return copy_rows<0>(files, column, lane_rows, places, n, out);
    }
}

}  // namespace

bool copy_steps(Table table, const MappedFiles& mapped, const Layout& layout, const StepColumn* columns, int64_t n_columns,
                uint8_t* const* arrays, const int64_t* streams, const int64_t* positions, int64_t n, int64_t* ids) noexcept {
    Place places[2][BLOCK];  // of the steps, and of the rows after them
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, n - begin);
        for (int64_t i = 0; i < count; i++) {
            const int64_t stream = streams[begin + i], position = positions[begin + i];
            if (stream < 0 || stream >= table.n) return false;
            ids[begin + i] = position * table.n + stream;
            for (int after = 0; after < 2; after++) {
                places[after][i] = layout.place_of(table.streams[stream], position + after);
                if (places[after][i].file < 0 || places[after][i].file >= mapped.files) return false;
            }
        }
        for (int64_t c = 0; c < n_columns; c++) {
            const StepColumn& column = columns[c];
            if (column.column < 0 || column.column >= mapped.columns) return false;
            uint8_t* out = arrays[c] + begin * column.row_bytes;
            if (!copy_column(mapped.sources + column.column * mapped.files, column, layout.segment_rows, places[column.after], count, out)) return false;
        }
    }
    return true;
}

}  // namespace diskbuffer
