"""Steps on their way into rows: where their values lie, what each step is, and its rows; see `recording.hpp`."""

import numpy as np
cimport numpy as cnp
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport Py_TYPE, PyObject
from libc.math cimport isinf
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

from diskbuffer.native.arrays cimport float64s, int64s, length, uint8s
from diskbuffer.native.libraries cimport attach_libraries
from diskbuffer.native.retention cimport Retention, Rule
from diskbuffer.native.table cimport Stream

cnp.import_array()
attach_libraries()

cdef extern from "numpy/arrayobject.h" nogil:
    bint PyArray_EquivTypenums(int one, int other)

cdef extern from "numpy/arrayobject.h":
    void PyArray_ScalarAsCtype(object scalar, void* number)

cdef extern from "values.hpp" namespace "diskbuffer" nogil:
    bint same_values_ "diskbuffer::same_values"(const uint8_t* a, const uint8_t* b, int64_t size, int64_t number_bytes)
    bint all_zero_ "diskbuffer::all_zero"(const uint8_t* values, int64_t size, int64_t number_bytes)
    bint has_nonfinite_ "diskbuffer::has_nonfinite"(const uint8_t* values, int64_t size, int64_t number_bytes)
    bint are_bools_ "diskbuffer::are_bools"(const uint8_t* values, int64_t size)
    bint round_to_float32_ "diskbuffer::round_to_float32"(const uint8_t* doubles, int64_t n, float* rounded)

cdef extern from "recording.hpp" namespace "diskbuffer" nogil:
    struct RecordedColumn:
        int64_t row_bytes

    struct Places:
        pass

    struct LengthPlace:
        pass

    struct Target:
        vector[RecordedColumn] columns
        int64_t terminated, truncated, reward
        uint64_t salt
        cbool next_step, fills_zeros
        int64_t frame_stack
        Stream* table
        int64_t streams
        const Places* places
        const int64_t* begins
        const int64_t* limits
        const LengthPlace* lengths
        int64_t segment_rows
        Rule* retention

    struct Values "diskbuffer::Source::Values":
        const uint8_t* first
        int64_t step_stride, environment_stride

    struct Source:
        Values before, after
        cbool is_stacked

    enum class Problem(int64_t):
        none
        unknown_stack
        nonfinite
        does_not_roll

    struct Verdict:
        Problem problem
        int64_t column, step, environment
        cbool after

    struct Start:
        pass

    cppclass Recorder "diskbuffer::BlockRecorder":
        Recorder(Target target) except +
        vector[Source] sources
        int64_t steps, environments, first_stream
        const uint8_t* declared
        Verdict decide() except +
        void commit(int64_t until, cbool all_or_none) except +
        cbool has_rows_to_come(int64_t environment)
        cbool is_committed()
        int64_t cut_off(const int64_t* streams, int64_t n)
        void put_newest_stack(int64_t column, int64_t stream, const uint8_t* oldest, cbool newest_frame_only)
        void forget()
        int64_t done, recorded, cut_offs
        vector[Start] starts

NEEDS_ROOM, HAS_PROBLEM, MISFIT = -1, -2, -3  # of `BlockRecorder.add`
NOT_FINITE, DOES_NOT_ROLL = <int64_t>Problem.nonfinite, <int64_t>Problem.does_not_roll

cdef enum:
    MOST_AXES = 32
    LARGE = 32 * 1024  # bytes of a block, from which on other threads of Python run meanwhile
    MOST_ROUNDED = 1 << 20  # numbers of one value that are rounded here


cdef enum NumberKind:
    TRUTH, SIGNED, UNSIGNED, SINGLE, DOUBLE, OTHER


cdef struct Slot:
    int64_t column
    bint is_observation, is_after
    int type_number
    NumberKind kind
    PyObject* scalar  # numpy's type of single numbers
    int64_t item_bytes, row_bytes
    int axes
    cnp.npy_intp shape[MOST_AXES]
    uint8_t number[16]  # a copy of a single one


cdef class BlockRecorder:
    """Record blocks of steps.

    Parameters
    ----------
    columns : (columns, 5) int64
        Fields of `RecordedColumn`.
    slots : list of (int, bool or None, numpy.dtype, tuple of int)
        The values that make a step, in the order in which they are given: the number of the column, whether it is an observation after
        the step, None for what is none, dtype and shape.
    flags : tuple of int
        The numbers of the columns terminated, truncated and reward.
    table, limits : int64 arrays
        Of `Index.table` and `StreamLog`.
    places : diskbuffer.store.writing.open_segments.Places
        Where rows lie, and what has them count.
    retention : Retention
        What gives up the oldest steps.

    Attributes
    ----------
    problem : tuple
        Why a block was not taken: the kind, the column, the step, the environment, and whether it is about what came after.
    """

    cdef unique_ptr[Recorder] recorder
    cdef vector[Slot] slots
    cdef vector[vector[float]] rounded  # by slot
    cdef vector[RecordedColumn] columns
    cdef vector[uint8_t] declared  # of a block, where one flag is given
    cdef list kept
    cdef Retention retention
    cdef int64_t n_slots, step_bytes, frame_stack, streams, terminated, truncated
    cdef bint has_steps, has_environments
    cdef readonly tuple problem

    def __init__(
        self,
        columns,
        list slots,
        tuple flags,
        table,
        limits,
        places,
        Retention retention not None,
        *,
        int64_t frame_stack,
        bint next_step,
        bint fills_zeros,
    ):
        cdef Target target
        cdef int64_t i, n = length(columns)
        cdef const RecordedColumn* described = <const RecordedColumn*>int64s(columns, 2)
        if length(columns, 1) * sizeof(int64_t) != sizeof(RecordedColumn) or length(table, 1) * sizeof(int64_t) != sizeof(Stream):
            raise TypeError(f"expected other fields than {columns.shape} and {table.shape}")
        for i in range(n):
            self.columns.push_back(described[i])
            self.step_bytes += described[i].row_bytes
        target.columns = self.columns
        target.terminated, target.truncated, target.reward = flags
        self.terminated, self.truncated = target.terminated, target.truncated
        target.frame_stack = frame_stack
        target.next_step, target.fills_zeros = next_step, fills_zeros
        target.table, target.streams = <Stream*>int64s(table, 2), length(table)
        target.places, target.begins = <const Places*>int64s(places.addresses, 3), int64s(places.begins)
        target.limits, target.salt, target.segment_rows = int64s(limits), places.salt, places.segment_rows
        target.lengths = <const LengthPlace*>int64s(places.lengths, 3)
        if places.addresses.shape != (n, target.streams, 2) or {length(places.begins), length(limits)} != {target.streams}:
            raise TypeError(f"expected places of {n} columns and {target.streams} streams, found {places.addresses.shape}")
        if places.lengths.shape != (target.streams, 2, 2) or places.segment_rows < 1:
            raise TypeError(f"expected lengths of {target.streams} streams, found {places.lengths.shape}")
        target.retention = retention.rule.get()
        self.recorder.reset(new Recorder(target))
        self.kept, self.retention = [table, places, limits, slots], retention
        self.frame_stack, self.streams, self.problem = frame_stack, target.streams, ()
        for slot in slots:
            self.slots.push_back(self._slot(slot))
        self.n_slots = len(slots)
        self.rounded.resize(self.n_slots)

    cdef Slot _slot(self, tuple described) except *:
        cdef Slot slot
        cdef int axis
        number, is_after, dtype, shape = described
        slot.column, slot.is_observation, slot.is_after = number, is_after is not None, bool(is_after)
        slot.type_number, slot.item_bytes = dtype.num, dtype.itemsize
        slot.row_bytes = self.columns[slot.column].row_bytes
        slot.scalar = <PyObject*>dtype.type
        slot.kind = {"b": TRUTH, "i": SIGNED, "u": UNSIGNED}.get(dtype.kind, OTHER)
        if dtype.kind == "f":
            slot.kind = {4: SINGLE, 8: DOUBLE}.get(dtype.itemsize, OTHER)
        slot.axes = len(shape)
        if slot.axes > MOST_AXES - 3:
            raise ValueError(f"expected at most {MOST_AXES - 3} dimensions, found {shape}")
        for axis in range(slot.axes):
            slot.shape[axis] = shape[axis]
        return slot

    # What is given

    def begin(self, steps, int64_t first_stream, int64_t environments, bint has_environments):
        """Say what the next blocks are: so many steps, None for one without an axis, of environments from a stream on.

        `has_environments` tells that these have an axis; it may be missing of one step of one environment.
        """
        cdef Recorder* recorder = self.recorder.get()
        self.has_steps, self.has_environments = steps is not None, has_environments
        recorder.steps = 1 if steps is None else steps
        recorder.first_stream, recorder.environments = first_stream, environments

    cdef int64_t _find(self, tuple values) except -2:
        """Find where values lie that are as the columns hold them.

        Returns -1 where all are; else the number of the first one that is not, or, less the number of slots, that of a column whose
        observations are stacks before the step and single frames after it, or the other way round.
        """
        cdef Recorder* recorder = self.recorder.get()
        cdef int64_t i
        cdef bint is_stacked
        cdef Slot* slot
        cdef Source* source
        if len(values) != self.n_slots:
            raise ValueError(f"expected {self.n_slots} values, found {len(values)}")
        for i in range(self.n_slots):
            slot = &self.slots[i]
            source = &recorder.sources[slot.column]
            is_stacked = False
            if not self._find_value(i, values[i], &source.after if slot.is_after else &source.before, &is_stacked):
                return i
            if slot.is_after and source.is_stacked != is_stacked:
                return self.n_slots + slot.column
            source.is_stacked = is_stacked
        return -1

    cdef bint _find_value(self, int64_t i, object value, Values* block, bint* is_stacked) except -1:
        """Find where a value lies; return whether it is as its column holds it. Flags of a block that are not given are False."""
        cdef Slot* slot = &self.slots[i]
        cdef Recorder* recorder = self.recorder.get()
        cdef bint is_alone = not self.has_steps and recorder.environments == 1
        if cnp.PyArray_CheckExact(value):
            if self._find_array(i, <cnp.ndarray>value, 0, block):
                return True
            if slot.is_observation and self.frame_stack > 1 and self._find_array(i, <cnp.ndarray>value, 1, block):
                is_stacked[0] = True
                return True
            return False
        if self.has_steps and value is None and (slot.column == self.terminated or slot.column == self.truncated):
            slot.number[0] = False
        elif not is_alone or slot.axes != 0 or not self._copy_number(slot, value):
            return False
        block.first, block.step_stride, block.environment_stride = slot.number, 0, 0
        return True

    cdef bint _find_array(self, int64_t i, cnp.ndarray array, int stack_axes, Values* block) except -1:
        cdef Slot* slot = &self.slots[i]
        cdef Recorder* recorder = self.recorder.get()
        cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(array)
        cdef cnp.npy_intp* strides = cnp.PyArray_STRIDES(array)
        cdef int axis, lead = self.has_steps + self.has_environments, axes = cnp.PyArray_NDIM(array), number = cnp.PyArray_TYPE(array)
        cdef int64_t size = slot.item_bytes, step, environment
        cdef bint is_rounded = False
        if number != slot.type_number and not PyArray_EquivTypenums(number, slot.type_number):
            if number != cnp.NPY_DOUBLE or slot.kind != SINGLE or not cnp.PyArray_IS_C_CONTIGUOUS(array):
                return False
            is_rounded, size = True, 8
        if not cnp.PyArray_ISNOTSWAPPED(array):
            return False
        if axes != lead + stack_axes + slot.axes:
            if self.has_steps or recorder.environments != 1 or axes != lead - 1 + stack_axes + slot.axes:
                return False
            lead -= 1
        axis = axes - 1
        while axis >= lead + stack_axes:
            if shape[axis] != slot.shape[axis - lead - stack_axes] or (strides[axis] != size and shape[axis] != 1):
                return False
            size *= shape[axis]
            axis -= 1
        if stack_axes:
            if shape[lead] != self.frame_stack or strides[lead] != size:
                return False
            size *= self.frame_stack
        axis = 0
        block.step_stride = block.environment_stride = 0
        if self.has_steps:
            if shape[0] != recorder.steps:
                return False
            block.step_stride = strides[0]
            axis = 1
        if lead > axis:
            if shape[axis] != recorder.environments:
                return False
            block.environment_stride = strides[axis]
        block.first = <const uint8_t*>cnp.PyArray_DATA(array)
        if is_rounded:
            if not self._round(i, array):
                return False
            block.first = <const uint8_t*>self.rounded[i].data()
            block.step_stride, block.environment_stride = block.step_stride // 2, block.environment_stride // 2
        elif slot.kind == TRUTH:
            if cnp.PyArray_IS_C_CONTIGUOUS(array):
                if not are_bools_(block.first, cnp.PyArray_SIZE(array)):
                    return False
            else:
                for step in range(recorder.steps):
                    for environment in range(recorder.environments):
                        if not are_bools_(block.first + step * block.step_stride + environment * block.environment_stride, size):
                            return False
        if stack_axes:
            block.first += (self.frame_stack - 1) * slot.row_bytes
        return True

    cdef bint _round(self, int64_t i, cnp.ndarray array) except -1:
        """Copy numbers as float32; return whether there are not too many, and all fit."""
        cdef int64_t n = cnp.PyArray_SIZE(array)
        if n > MOST_ROUNDED:
            return False
        self.rounded[i].resize(n)
        return round_to_float32_(<const uint8_t*>cnp.PyArray_DATA(array), n, self.rounded[i].data())

    cdef bint _copy_number(self, Slot* slot, object value) except -1:
        """Copy a number of Python's or numpy's; return whether the column holds it as it is, or rounded."""
        cdef int overflow = 0
        cdef long long integer
        cdef double double_
        cdef float single
        if value is True or value is False:
            slot.number[0] = value is True
            return slot.kind == TRUTH
        if <PyObject*>Py_TYPE(value) == slot.scalar:
            PyArray_ScalarAsCtype(value, slot.number)
            return True
        if PyFloat_Check(value):  # which float64 is, too
            double_ = PyFloat_AS_DOUBLE(value)
            single = <float>double_
            if slot.kind == DOUBLE:
                memcpy(slot.number, &double_, 8)
            else:
                memcpy(slot.number, &single, 4)
            return slot.kind == DOUBLE or (slot.kind == SINGLE and (not isinf(single) or isinf(double_)))
        if not PyLong_CheckExact(value):
            return False
        integer = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return False
        if slot.kind == SINGLE or slot.kind == DOUBLE:
            single, double_ = <float>integer, <double>integer
            if slot.kind == DOUBLE:
                memcpy(slot.number, &double_, 8)
                return -(1 << 53) <= integer <= 1 << 53
            memcpy(slot.number, &single, 4)
            return -(1 << 24) <= integer <= 1 << 24
        memcpy(slot.number, &integer, 8)
        if slot.kind == SIGNED:
            return slot.item_bytes == 8 or -(1LL << (8 * slot.item_bytes - 1)) <= integer < 1LL << (8 * slot.item_bytes - 1)
        return slot.kind == UNSIGNED and integer >= 0 and (slot.item_bytes == 8 or integer < 1LL << 8 * slot.item_bytes)

    # What it is, and its rows

    cdef bint _decide(self, declared) except -1:
        """Decide what each step of the block that was found is; return whether it can be recorded. If not, `problem` says why.

        `declared`, (steps, environments) uint8, has which start an episode, or is one flag, of the first steps: all others go on. None
        where the values decide.
        """
        cdef Recorder* recorder = self.recorder.get()
        cdef Verdict verdict
        cdef int64_t environment
        recorder.declared = <const uint8_t*>NULL
        if declared is True or declared is False:
            self.declared.assign(recorder.steps * recorder.environments, 0)
            for environment in range(recorder.environments if recorder.steps > 0 else 0):
                self.declared[environment] = declared is True
            recorder.declared = self.declared.data()
        elif declared is not None:
            recorder.declared = uint8s(declared, 2)
            if length(declared) != recorder.steps or length(declared, 1) != recorder.environments:
                raise ValueError(f"expected ({recorder.steps}, {recorder.environments}) flags of starts, found {declared.shape}")
        if recorder.steps * recorder.environments * self.step_bytes < LARGE:
            verdict = recorder.decide()
        else:
            with nogil:
                verdict = recorder.decide()
        recorder.declared = <const uint8_t*>NULL
        if verdict.problem == Problem.none:
            return True
        self.problem = <int64_t>verdict.problem, verdict.column, verdict.step, verdict.environment, verdict.after
        return False

    cpdef cbool commit(self, int64_t until, cbool all_or_none=False) except? False:
        """Commit the steps before `until` that there is room for, or all or none; return whether nothing of the block is left."""
        cdef Recorder* recorder = self.recorder.get()
        if not recorder.done <= until <= recorder.steps:
            raise ValueError(f"expected {recorder.done} to {recorder.steps}, found {until}")
        if recorder.steps * recorder.environments * self.step_bytes < LARGE:
            recorder.commit(until, all_or_none)
        else:
            with nogil:
                recorder.commit(until, all_or_none)
        return recorder.is_committed()

    def coming(self):
        """Return the only stream with rows to come of the step that is due; -1, if there are several."""
        cdef Recorder* recorder = self.recorder.get()
        cdef int64_t environment, stream = -1
        for environment in range(recorder.environments):
            if recorder.has_rows_to_come(environment):
                if stream >= 0:
                    return -1
                stream = recorder.first_stream + environment
        return stream

    def add(self, tuple values, declared, int64_t most):
        """Find and decide a block, and commit so many steps of it, where there is room for them, so that a Ctrl-C comes after all.

        Returns what `finish` does; `NEEDS_ROOM` where steps are left, for which `commit` is due again, with room for them;
        `HAS_PROBLEM`, which `problem` tells; `MISFIT` less what `_find` returns.
        """
        cdef Recorder* recorder = self.recorder.get()
        cdef int64_t misfit = self._find(values)
        if misfit >= 0:
            return MISFIT - misfit
        if not self._decide(declared):
            return HAS_PROBLEM
        return self.finish() if self.commit(min(most, recorder.steps), True) else NEEDS_ROOM

    def finish(self):
        """Return four times the number of steps that were recorded since this was called last, and what there is to note.

        That is 1 more if `take_starts` is due, and 2 more if a segment is not needed any more. Where there are episodes to take,
        `Retention.give_up` is due once they are in the table; else it was done.
        """
        cdef Recorder* recorder = self.recorder.get()
        cdef int64_t recorded = recorder.recorded
        cdef int64_t to_note = not recorder.starts.empty() or recorder.cut_offs > 0
        recorder.recorded = 0
        if recorder.starts.empty():
            to_note += 2 * self.retention.rule.get().give_up()
        return 4 * recorded + to_note

    @property
    def part(self):
        """Of which streams the block is: the first, and how many."""
        return self.recorder.get().first_stream, self.recorder.get().environments

    @property
    def steps(self):
        """How many steps the block has."""
        return self.recorder.get().steps

    @property
    def done(self):
        """How many steps of the block are committed."""
        return self.recorder.get().done

    def take_starts(self):
        """Return what came to be since this was called last: episodes that are not in the table yet, and how many were cut off.

        Of episodes, (n, 3) int64: the stream, the position of the first row, and that of its stack's prefix, -1 where it has none. A row
        of a prefix is one, too.
        """
        cdef Recorder* recorder = self.recorder.get()
        cdef cnp.npy_intp shape[2]
        cdef int64_t cut_offs = recorder.cut_offs
        shape[0], shape[1] = recorder.starts.size(), 3
        starts = cnp.PyArray_EMPTY(2, shape, cnp.NPY_INT64, 0)
        memcpy(cnp.PyArray_DATA(<cnp.ndarray>starts), recorder.starts.data(), recorder.starts.size() * sizeof(Start))
        recorder.starts.clear()
        recorder.cut_offs = 0
        return starts, cut_offs

    def cut_off(self, streams):
        """End the running episodes of streams, (n,) int64, and have their next steps start others; return how many there were."""
        cdef const int64_t* first = int64s(streams)
        cdef int64_t k, n = length(streams)
        for k in range(n):
            if not 0 <= first[k] < self.streams:
                raise IndexError(f"expected streams below {self.streams}, found {first[k]}")
        return self.recorder.get().cut_off(first, n)

    def put_newest_stack(self, int64_t column, int64_t stream, stack, bint newest_frame_only):
        """Say what the newest stack of a stream is, as it is stored, (bytes,) uint8; or only its newest frame."""
        if length(stack) != self.frame_stack * self.columns[column].row_bytes:
            raise ValueError(f"expected {self.frame_stack * self.columns[column].row_bytes} bytes, found {length(stack)}")
        self.recorder.get().put_newest_stack(column, stream, uint8s(stack), newest_frame_only)

    def forget(self):
        """Forget what was begun, after an error."""
        self.recorder.get().forget()


def round_to_float32(doubles):
    """Return numbers, (n,) float64, rounded to float32, and whether all fit: NaN and infinity do, what becomes infinity does not."""
    cdef cnp.npy_intp n = length(doubles)
    cdef double* source = float64s(doubles)
    rounded = cnp.PyArray_EMPTY(1, &n, cnp.NPY_FLOAT32, 0)
    return rounded, bool(round_to_float32_(<const uint8_t*>source, n, <float*>cnp.PyArray_DATA(<cnp.ndarray>rounded)))


def same_values(a, b, int64_t number_bytes):
    """Return whether bytes, (n,) uint8, hold the same values; see `values.hpp`."""
    if length(a) != length(b):
        raise ValueError(f"expected as many bytes, found {length(a)} and {length(b)}")
    return bool(same_values_(uint8s(a), uint8s(b), length(a), number_bytes))


def all_zero(values, int64_t number_bytes):
    """Return whether bytes, (n,) uint8, hold zeros only."""
    return bool(all_zero_(uint8s(values), length(values), number_bytes))


def has_nonfinite(values, int64_t number_bytes):
    """Return whether a number among bytes, (n,) uint8, is NaN or infinite."""
    return bool(has_nonfinite_(uint8s(values), length(values), number_bytes))


def are_bools(values):
    """Return whether bytes, (n,) uint8, are 0 or 1 each."""
    return bool(are_bools_(uint8s(values), length(values)))
