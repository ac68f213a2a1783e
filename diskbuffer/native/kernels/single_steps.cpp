#include "single_steps.hpp"

#include <algorithm>
#include <cstring>

#include "memory.hpp"

namespace diskbuffer {

namespace {

constexpr int64_t BLOCK = 256;  // steps whose places are found before they are copied
constexpr int64_t AHEAD = 8;    // how many steps before it is copied a row is brought into the caches

// A row of a file of every column.
struct FileRow {
    const Source* sources;  // of the columns, each `files` behind the other
    int64_t files, row;

    const Source& source(const StepColumn& column) const { return sources[column.column * files]; }
};

// Copy one row of each of `n` files, of BYTES bytes if that is not 0; return false where a file is not mapped.
template <int64_t BYTES>
bool copy_rows(const StepColumn& column, const FileRow* rows, int64_t n, uint8_t* out) {
    const int64_t row_bytes = BYTES != 0 ? BYTES : column.row_bytes;
    const auto address_of = [&](const FileRow& row) { return row.source(column).at(row.row * row_bytes); };
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) prefetch(address_of(rows[i + AHEAD]));
        if (rows[i].source(column).address == 0) return false;
        std::memcpy(out + i * row_bytes, address_of(rows[i]), row_bytes);
    }
    if (column.flag != 0)
        for (int64_t k = 0; k < n * row_bytes; k++) out[k] = out[k] != 0;
    return true;
}

bool copy_column(const StepColumn& column, const FileRow* rows, int64_t n, uint8_t* out) {
    switch (column.row_bytes) {
        case 1: return copy_rows<1>(column, rows, n, out);
        case 4: return copy_rows<4>(column, rows, n, out);
        case 8: return copy_rows<8>(column, rows, n, out);
        case 16: return copy_rows<16>(column, rows, n, out);
        default: return copy_rows<0>(column, rows, n, out);
    }
}

FileRow row_of(const MappedFiles& mapped, int64_t store, const Place& place) {
    const StoreFiles& files = mapped.of(store);
    return {files.sources_of(place.file), files.files, place.lane * mapped.segment_rows + place.row};
}

}  // namespace

bool copy_steps(Table table, const MappedFiles& mapped, const StepColumn* columns, int64_t n_columns, uint8_t* const* arrays,
                const int64_t* streams, const int64_t* positions, int64_t n, int64_t* ids) noexcept {
    FileRow rows[2][BLOCK];  // of the steps, and of the rows after them
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, n - begin);
        for (int64_t i = 0; i < count; i++) {
            const Stream& stream = table.streams[streams[begin + i]];
            prefetch(stream.segment_list + (positions[begin + i] - stream.low) / mapped.segment_rows);
        }
        for (int64_t i = 0; i < count; i++) {
            const Stream& stream = table.streams[streams[begin + i]];
            const int64_t position = positions[begin + i];
            ids[begin + i] = table.id_of(streams[begin + i], position);
            const Place place = mapped.place_of(stream, position);
            FileRow& row = rows[0][i] = row_of(mapped, stream.store, place);
            FileRow& after = rows[1][i] = row;
            after.row++;
            if (place.rows == 1) after = row_of(mapped, stream.store, mapped.place_of(stream, position + 1));
            if (!row.sources || !after.sources) return false;
        }
        for (int64_t c = 0; c < n_columns; c++) {
            const StepColumn& column = columns[c];
            uint8_t* out = arrays[c] + begin * column.row_bytes;
            if (!copy_column(column, rows[column.after], count, out)) return false;
        }
    }
    return true;
}

}  // namespace diskbuffer
