#include "random_batch.hpp"

#include <vector>

#include "drawing.hpp"

namespace diskbuffer {

bool gather_random(Index& index, Philox& random, const RandomBatch& batch, SharedBatch& shared, Board* const* boards, int64_t n_boards,
                   Scratch scratch, int64_t* ids) {
    const int64_t n = batch.n;
    std::vector<int64_t> places(4 * n);
    int64_t* first = places.data();
    const Located located{first, first + n, first + 2 * n, first + 3 * n};
    const Windows windows{located.streams, located.positions, located.starts, located.lasts, n, batch.before, batch.rows};
    const int64_t steps = draw_steps(index, random, n, located);
    if (steps <= 0 || steps > MOST_BELOW) return false;
    const Table table = index.table();
    for (int64_t i = 0; i < n; i++) ids[i] = table.id_of(located.streams[i], located.positions[i]);
    PlanMemory memory;
    return plan_windows(table, batch.mapped, windows, 0, memory, shared.batch) &&
           gather_together(shared, boards, n_boards, scratch) == 0;
}

}  // namespace diskbuffer
