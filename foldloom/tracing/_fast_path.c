/* The fast path: calls of known signatures, recorded without running Python.

   Recording is the one place where Python runs for every node of every example. Nearly all calls have the signature of an earlier
   one: the same function or cell, operands of the same types. What such a call records is in the `calls` of a `GraphBuilder`, and
   recording it is a lookup, a few numbers appended to lists, and handles for its results. This file does that and nothing else. It
   knows no torch. Any other call it leaves to the Python function that it stands in front of, which defines what a call means and
   does the same, only slower, where this file was not compiled.

   From a handle it gets to its recorder, from there by one slot to the recorder's `GraphBuilder`, and touches nothing else of a
   recorder. It reads fields at the offsets of their `__slots__`, which `bind` looks up. */

#include "_fast_path.h"
#include <structmember.h>

#define MOST_PARTS 64 /* of a key; longer calls are left to Python */
#define MOST_LEVELS 8 /* of nested arguments; deeper ones too */
#define FARTHEST 64   /* how many nodes back a node is looked for */
#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

static struct {
    int is_bound;
    PyTypeObject *handle_type, *freed_type, *recorder_type, *known_type, *views_type;
    struct {
        Py_ssize_t graph, automatic;
    } recorder;
    struct {
        Py_ssize_t recorder, value, type, depth, source, views, place;
        Py_ssize_t dtype; /* of a type */
    } handle;
    struct {
        Py_ssize_t base, function, args, kwargs, grad_enabled, views;
    } views;
    struct {
        Py_ssize_t op_of_node, operands, depth_of_node, lengths, value_count, calls, grad, autocast, joins_freely,
            column_of_number, number_of_value, module_states, cells, shared_tensors, numbers_vary;
    } graph;
    struct {
        Py_ssize_t op_number, output_types, returns, returns_one, returns_tuple, shares_with, is_operand, is_ragged, may_raise;
    } known;
    struct {
        Py_ssize_t op_number, type, values;
    } column;
    struct {
        Py_ssize_t ragged, shape, row;
    } type;
    PyObject *is_grad_enabled, *is_autocast_enabled; /* torch's */
    PyObject *scope;                                 /* whose attribute `recorder` is where this thread records */
    PyObject *handlers;                              /* functions that Python must see */
    PyObject *module_types;                          /* modules that count as one operation */
    PyObject *parameter_type, *tensor_type;
    PyObject *plain_types;     /* of settings that a key holds as they are */
    PyObject *may_copy;        /* functions whose results are views or not, which Python finds out */
    PyObject *rebuilt;         /* puts results in the nesting of what a call returns */
    PyObject *make_tensor;     /* torch.tensor */
    PyObject *stack;           /* torch.stack */
    PyObject *type_of_stack;   /* by the type of a row */
    PyObject *get_item, *take; /* torch.Tensor.__getitem__, and what it is of one element */
    PyObject *type_of_index;   /* of a whole number */
    PyObject *may_be_caught;   /* whether somebody on the stack may catch what a call raises */
    PyObject *make_handle;     /* makes a handle with empty slots, a tensor without data */
} bound;

static PyObject *name_recorder, *name_own_recorder, *name_training, *name_parameters, *name_parts, *name_hooks, *name_pre_hooks;

/* A key under construction. */
typedef struct {
    PyObject *recorder, *graph;  /* borrowed */
    PyObject *parts[MOST_PARTS]; /* each owned */
    int size;
    PyObject *operands[MOST_PARTS]; /* borrowed: numbers of values, of the rows of ragged ones, or numbers that are given */
    PyObject *columns[MOST_PARTS];  /* borrowed: where a given number goes, or NULL */
    int operand_count, has_handles;
    int keeps_numbers; /* whether given numbers are noted, for who reads what was given */
    Py_ssize_t rows;   /* of the ragged operands; -1 if there are none */
    long depth;
} Key;

static void key_start(Key *key, PyObject *recorder, PyObject *called)
{
    key->recorder = recorder;
    key->graph = SLOT(recorder, bound.recorder.graph);
    key->parts[0] = Py_NewRef(called);
    key->size = 1;
    key->operand_count = key->has_handles = key->keeps_numbers = 0;
    key->rows = -1;
    key->depth = 0;
}

static void key_drop(Key *key)
{
    while (key->size)
        Py_DECREF(key->parts[--key->size]);
}

/* Takes over a reference, which may be NULL after a failure. */
static Outcome key_take(Key *key, PyObject *part)
{
    if (part == NULL)
        return FAILED;
    if (key->size == MOST_PARTS) {
        Py_DECREF(part);
        return UNKNOWN;
    }
    key->parts[key->size++] = part;
    return FOUND;
}

static Outcome key_add(Key *key, PyObject *part) { return key_take(key, Py_NewRef(part)); }

/* Whether nobody has deleted an attribute of a handle. */
static int is_whole(PyObject *handle)
{
    return SLOT(handle, bound.handle.recorder) != NULL && SLOT(handle, bound.handle.value) != NULL &&
           SLOT(handle, bound.handle.type) != NULL && SLOT(handle, bound.handle.depth) != NULL;
}

static Outcome key_add_handle(Key *key, PyObject *handle)
{
    PyObject *value = SLOT(handle, bound.handle.value);
    if (!is_whole(handle) || SLOT(handle, bound.handle.recorder) != key->recorder || key->operand_count == MOST_PARTS)
        return UNKNOWN; /* foreign or given, or too many */
    if (!PyLong_CheckExact(value)) {
        Py_ssize_t rows = PySequence_Size(value);
        if (rows < 0)
            return FAILED;
        if (key->rows >= 0 && key->rows != rows)
            return UNKNOWN;
        key->rows = rows;
    }
    long depth = PyLong_AsLong(SLOT(handle, bound.handle.depth));
    if (depth > key->depth)
        key->depth = depth;
    key->columns[key->operand_count] = NULL;
    key->operands[key->operand_count++] = value;
    key->has_handles = 1;
    return key_add(key, SLOT(handle, bound.handle.type));
}

static int is_container(PyObject *argument) { return PyTuple_CheckExact(argument) || PyList_CheckExact(argument); }

static int is_zero(PyObject *number)
{
    return PyFloat_CheckExact(number) ? PyFloat_AS_DOUBLE(number) == 0.0 : PyLong_Check(number) && !PyObject_IsTrue(number);
}

/* A setting, beside its kind, which tells 1 from True and 1.0. */
static Outcome key_add_setting(Key *key, PyObject *item)
{
    Outcome outcome = key_add(key, (PyObject *)Py_TYPE(item));
    if (outcome != FOUND)
        return outcome;
    return PyFloat_CheckExact(item) && is_zero(item) ? key_take(key, PyObject_Repr(item)) : key_add(key, item);
}

/* A weight, by its identity. Tensors that are no parameters are weights if several examples use them. */
static Outcome key_add_weight(Key *key, PyObject *item)
{
    PyObject *id = PyLong_FromVoidPtr(item);
    if (id == NULL)
        return FAILED;
    if ((PyObject *)Py_TYPE(item) == bound.tensor_type) {
        int is_shared = PyDict_Contains(SLOT(key->graph, bound.graph.shared_tensors), id);
        if (is_shared != 1) {
            Py_DECREF(id);
            return is_shared < 0 ? FAILED : UNKNOWN;
        }
    }
    Outcome outcome = key_add(key, (PyObject *)Py_TYPE(item));
    if (outcome == FOUND)
        return key_take(key, id);
    Py_DECREF(id);
    return outcome;
}

static Outcome key_add_slice(Key *key, PySliceObject *slice)
{
    PyObject *bounds[3] = {slice->start, slice->stop, slice->step};
    Outcome outcome = key_add(key, (PyObject *)&PySlice_Type);
    for (int i = 0; i < 3 && outcome == FOUND; i++)
        outcome = bounds[i] == Py_None || PyLong_CheckExact(bounds[i]) ? key_add(key, bounds[i]) : UNKNOWN;
    return outcome;
}

static Outcome key_add_item(Key *key, PyObject *item)
{
    PyTypeObject *kind = Py_TYPE(item);
    if (kind == bound.handle_type)
        return key_add_handle(key, item);
    if ((PyObject *)kind == bound.parameter_type || (PyObject *)kind == bound.tensor_type)
        return key_add_weight(key, item);
    if (kind == &PySlice_Type)
        return key_add_slice(key, (PySliceObject *)item);
    int is_plain = PySet_Contains(bound.plain_types, (PyObject *)kind);
    return is_plain < 0 ? FAILED : is_plain ? key_add_setting(key, item) : UNKNOWN;
}

static Outcome key_add_argument(Key *key, PyObject *argument)
{
    if (!is_container(argument))
        return key_add_item(key, argument);
    Py_ssize_t size = PySequence_Fast_GET_SIZE(argument);
    Outcome outcome = key_add(key, (PyObject *)Py_TYPE(argument));
    if (outcome == FOUND)
        outcome = key_take(key, PyLong_FromSsize_t(size));
    for (Py_ssize_t i = 0; i < size && outcome == FOUND; i++)
        outcome = key_add_item(key, PySequence_Fast_GET_ITEM(argument, i));
    return outcome;
}

/* All settings by name: their names, their kinds, and they themselves. */
static Outcome key_add_named(Key *key, PyObject *names, PyObject *const *values)
{
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    int has_float = 0;
    PyObject *kinds = PyTuple_New(count);
    if (kinds == NULL)
        return FAILED;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTypeObject *kind = Py_TYPE(values[i]);
        int is_plain = PySet_Contains(bound.plain_types, (PyObject *)kind);
        if (is_plain != 1) {
            Py_DECREF(kinds);
            return is_plain < 0 ? FAILED : UNKNOWN;
        }
        has_float |= kind == &PyFloat_Type;
        PyTuple_SET_ITEM(kinds, i, Py_NewRef((PyObject *)kind));
    }
    Outcome outcome = key_add(key, names);
    if (outcome != FOUND) {
        Py_DECREF(kinds);
        return outcome;
    }
    outcome = key_take(key, kinds);
    for (Py_ssize_t i = 0; i < count && outcome == FOUND; i++)
        outcome = has_float && is_zero(values[i]) ? key_take(key, PyObject_Repr(values[i])) : key_add(key, values[i]);
    return outcome;
}

/* What is known of the call. The key is used up. */
static Outcome key_find(Key *key, PyObject **known)
{
    PyObject *tuple = PyTuple_New(key->size);
    if (tuple == NULL)
        return FAILED;
    for (int i = 0; i < key->size; i++)
        PyTuple_SET_ITEM(tuple, i, key->parts[i]);
    key->size = 0;
    PyObject *found = PyDict_GetItemWithError(SLOT(key->graph, bound.graph.calls), tuple);
    Py_DECREF(tuple);
    if (found == NULL)
        return PyErr_Occurred() ? FAILED : UNKNOWN;
    if (Py_TYPE(found) != bound.known_type)
        return UNKNOWN;
    if (SLOT(found, bound.known.may_raise) == Py_True) { /* and if it may be caught, Python waits for it */
        PyObject *answer = PyObject_CallNoArgs(bound.may_be_caught);
        if (answer == NULL || answer == Py_True) {
            Py_XDECREF(answer);
            return answer == NULL ? FAILED : UNKNOWN;
        }
        Py_DECREF(answer);
    }
    *known = Py_NewRef(found);
    return FOUND;
}

/* Whether calls can be recorded here at all: in the mode that `calls` is for. */
static Outcome is_in_mode(PyObject *recorder)
{
    if (Py_TYPE(recorder) != bound.recorder_type)
        return UNKNOWN;
    PyObject *graph = SLOT(recorder, bound.recorder.graph);
    PyObject *grad = PyObject_CallNoArgs(bound.is_grad_enabled);
    PyObject *autocast = grad == NULL ? NULL : PyObject_CallNoArgs(bound.is_autocast_enabled);
    if (autocast == NULL) {
        Py_XDECREF(grad);
        return FAILED;
    }
    int same = grad == SLOT(graph, bound.graph.grad) && autocast == Py_False && SLOT(graph, bound.graph.autocast) == Py_False;
    Py_DECREF(grad);
    Py_DECREF(autocast);
    return same ? FOUND : UNKNOWN;
}

/* And without an observer, who would see what is appended to the nodes. */
static Outcome can_record(PyObject *recorder)
{
    if (Py_TYPE(recorder) != bound.recorder_type ||
        !PyList_CheckExact(SLOT(SLOT(recorder, bound.recorder.graph), bound.graph.op_of_node)))
        return UNKNOWN;
    return is_in_mode(recorder);
}

/* ---- Handles. They are tensors, which take 1 us to make. So those that nobody uses any more are kept, with empty slots, and used
   again for values of the same dtype, which a tensor without data has too. All `__slots__` of the class are emptied, whichever
   there are, but for the place of the handle among all that there are. */

#define MOST_SPARE (1 << 15)
#define MOST_KINDS 32

static struct {
    PyObject *dtype; /* a string that is interned */
    PyObject **handles;
    int count;
} spare[MOST_KINDS];

static struct {
    struct {
        PyObject *handle; /* borrowed */
        int kind;
    } *entries;
    Py_ssize_t count, room;
} made;

static void empty_slots(PyObject *handle)
{
    for (PyMemberDef *slot = bound.handle_type->tp_members; slot != NULL && slot->name != NULL; slot++)
        if (slot->offset != bound.handle.place)
            Py_CLEAR(SLOT(handle, slot->offset));
}

/* Where the spare handles of a dtype are; -1 after a failure. */
static int kind_of(PyObject *type)
{
    PyObject *dtype = SLOT(type, bound.handle.dtype);
    int kind = 0;
    while (kind < MOST_KINDS && spare[kind].dtype != NULL && spare[kind].dtype != dtype)
        kind++;
    if (kind == MOST_KINDS) {
        PyErr_SetString(PyExc_SystemError, "there are more dtypes than expected");
        return -1;
    }
    if (spare[kind].dtype == NULL) {
        spare[kind].handles = PyMem_Malloc(MOST_SPARE * sizeof(PyObject *));
        if (spare[kind].handles == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        spare[kind].dtype = Py_NewRef(dtype);
    }
    return kind;
}

/* One more among all handles. */
static int enter(PyObject *handle, int kind)
{
    if (made.count == made.room) {
        Py_ssize_t room = made.room ? 2 * made.room : 1024;
        void *entries = PyMem_Realloc(made.entries, room * sizeof(*made.entries));
        if (entries == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        made.entries = entries;
        made.room = room;
    }
    PyObject *place = PyLong_FromSsize_t(made.count);
    if (place == NULL)
        return -1;
    Py_XSETREF(SLOT(handle, bound.handle.place), place);
    made.entries[made.count].handle = handle;
    made.entries[made.count++].kind = kind;
    return 0;
}

/* One less: the last takes its place. */
static void strike_out(PyObject *handle)
{
    PyObject *place = SLOT(handle, bound.handle.place);
    if (place == NULL)
        return;
    Py_ssize_t at = PyLong_AsSsize_t(place);
    made.entries[at] = made.entries[--made.count];
    if (at < made.count) {
        PyObject *moved = made.entries[at].handle;
        Py_SETREF(SLOT(moved, bound.handle.place), Py_NewRef(place));
    }
    Py_CLEAR(SLOT(handle, bound.handle.place));
}

/* Whether another thread is about to free a handle, which must not be used again. */
static int is_freed(PyObject *handle) { return Py_REFCNT(handle) == 0; }

/* All handles of a recorder that somebody holds. */
static PyObject *handles_of(PyObject *module, PyObject *recorder)
{
    (void)module;
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < made.count; i++) {
        PyObject *handle = made.entries[i].handle, *stands_for = NULL;
        PyObject *own = SLOT(handle, bound.handle.recorder);
        if (is_freed(handle) || own == NULL || (Py_TYPE(own) == bound.recorder_type && own != recorder))
            continue;
        if (own != recorder) /* something that stands for a recorder */
            stands_for = PyObject_GetAttr(own, name_recorder);
        if ((own == recorder || stands_for == recorder) && PyList_Append(found, handle) < 0)
            Py_CLEAR(found);
        if (own != recorder && stands_for == NULL)
            Py_CLEAR(found);
        Py_XDECREF(stands_for);
    }
    return found;
}

/* The first value that a handle stands for; -1 if there is none, or after a failure. */
static long first_value(PyObject *handle)
{
    PyObject *value = SLOT(handle, bound.handle.value);
    if (value == NULL || PyLong_CheckExact(value))
        return value == NULL ? -1 : PyLong_AsLong(value);
    Py_ssize_t rows = PySequence_Size(value);
    if (rows <= 0)
        return -1;
    PyObject *row = PySequence_GetItem(value, 0);
    long number = row == NULL ? -1 : PyLong_AsLong(row);
    Py_XDECREF(row);
    return number;
}

/* All handles of values of a recorder from one on that somebody holds. */
static PyObject *handles_since(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *recorder;
    long first;
    if (!PyArg_ParseTuple(args, "Ol", &recorder, &first))
        return NULL;
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < made.count; i++) {
        PyObject *handle = made.entries[i].handle;
        if (is_freed(handle) || SLOT(handle, bound.handle.recorder) != recorder)
            continue;
        long value = first_value(handle);
        if (PyErr_Occurred() || (value >= first && PyList_Append(found, handle) < 0))
            Py_CLEAR(found);
    }
    return found;
}

/* A handle that becomes a tensor, or stands for nothing any more: it is none from now on. */
static PyObject *forget_handle(PyObject *module, PyObject *handle)
{
    (void)module;
    if (Py_TYPE(handle) != bound.handle_type)
        return PyErr_Format(PyExc_TypeError, "a handle is wanted, not a %s", Py_TYPE(handle)->tp_name);
    empty_slots(handle);
    strike_out(handle);
    Py_RETURN_NONE;
}

/* Whether a handle has no attributes but its slots, as new ones have none. */
static int has_slots_only(PyObject *handle)
{
    PyObject **attributes = _PyObject_GetDictPtr(handle);
    if (attributes == NULL || *attributes == NULL)
        return 1;
    if (Py_REFCNT(*attributes) > 1 || PyDict_GET_SIZE(*attributes))
        return 0;
    Py_CLEAR(*attributes);
    return 1;
}

static void handle_dealloc(PyObject *handle)
{
    PyTypeObject *type = bound.handle_type;
    PyObject_GC_UnTrack(handle);
    PyObject_ClearWeakRefs(handle);
    empty_slots(handle);
    PyObject *place = SLOT(handle, bound.handle.place);
    if (Py_TYPE(handle) == type && place != NULL && has_slots_only(handle)) {
        int kind = made.entries[PyLong_AsSsize_t(place)].kind;
        if (spare[kind].count < MOST_SPARE) {
            _Py_NewReference(handle);
            spare[kind].handles[spare[kind].count++] = handle;
            return;
        }
    }
    strike_out(handle);
    /* Torch's own goes by the type, in which it must not find this one, and lets other threads run meanwhile. So it gets a handle of
       another type of the same layout. Attributes go first, because Python keeps them by type. */
    PyObject **attributes = _PyObject_GetDictPtr(handle);
    if (attributes != NULL)
        Py_CLEAR(*attributes);
    Py_SET_TYPE(handle, (PyTypeObject *)Py_NewRef(bound.freed_type));
    Py_DECREF(type);
    bound.freed_type->tp_dealloc(handle);
}

/* The garbage collector breaks a cycle. The handle stays a tensor and keeps its place, because it may be used again. */
static int handle_clear(PyObject *handle)
{
    PyObject **attributes = _PyObject_GetDictPtr(handle);
    if (attributes != NULL)
        Py_CLEAR(*attributes);
    empty_slots(handle);
    return 0;
}

/* Takes over a reference to the value, which may be NULL after a failure. */
static PyObject *new_handle(PyObject *recorder, PyObject *value, PyObject *type, PyObject *depth)
{
    PyObject *handle = NULL;
    int kind = value == NULL ? -1 : kind_of(type);
    if (kind >= 0 && spare[kind].count) {
        handle = spare[kind].handles[--spare[kind].count];
        PyObject_GC_Track(handle);
    }
    else if (kind >= 0) {
        handle = PyObject_CallOneArg(bound.make_handle, spare[kind].dtype);
        if (handle != NULL && enter(handle, kind) < 0)
            Py_CLEAR(handle);
    }
    if (handle == NULL) {
        Py_XDECREF(value);
        return NULL;
    }
    SLOT(handle, bound.handle.recorder) = Py_NewRef(recorder);
    SLOT(handle, bound.handle.value) = value;
    SLOT(handle, bound.handle.type) = Py_NewRef(type);
    SLOT(handle, bound.handle.depth) = Py_NewRef(depth);
    return handle;
}

/* The same for Python, with the source of a view. */
static PyObject *handle(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 4 && count != 5)
        return PyErr_Format(PyExc_TypeError, "a handle is made of recorder, value, type, depth and perhaps a source");
    PyObject *made = new_handle(args[0], Py_NewRef(args[1]), args[2], args[3]);
    if (made != NULL && count == 5)
        SLOT(made, bound.handle.source) = Py_NewRef(args[4]);
    return made;
}

static int append_number(PyObject *list, long number)
{
    PyObject *boxed = PyLong_FromLong(number);
    int failed = boxed == NULL || PyList_Append(list, boxed) < 0;
    Py_XDECREF(boxed);
    return failed ? -1 : 0;
}

/* One node more, which an observer may want to see. */
static int append_node(PyObject *graph, PyObject *op_number)
{
    PyObject *nodes = SLOT(graph, bound.graph.op_of_node);
    if (PyList_CheckExact(nodes))
        return PyList_Append(nodes, op_number);
    PyObject *none = PyObject_CallMethod(nodes, "append", "O", op_number);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

static int set_value_count(PyObject *graph, long count)
{
    PyObject *boxed = PyLong_FromLong(count);
    if (boxed == NULL)
        return -1;
    Py_SETREF(SLOT(graph, bound.graph.value_count), boxed);
    return 0;
}

/* A number that is given: an input of the graph. The number of its value, or -1. */
static long add_number(PyObject *graph, PyObject *column, PyObject *number)
{
    long value = PyLong_AsLong(SLOT(graph, bound.graph.value_count));
    if (PyList_Append(SLOT(column, bound.column.values), number) < 0 ||
        append_node(graph, SLOT(column, bound.column.op_number)) < 0 ||
        append_number(SLOT(graph, bound.graph.depth_of_node), 0) < 0 || set_value_count(graph, value + 1) < 0)
        return -1;
    return value;
}

/* One handle, or a tuple of them. */
static int returns_plainly(PyObject *known)
{
    return SLOT(known, bound.known.returns_one) == Py_True || SLOT(known, bound.known.returns_tuple) == Py_True;
}

/* The handles of all results, used up, in the nesting in which the call returns them. */
static PyObject *as_returned(PyObject *known, PyObject *handles)
{
    PyObject *result = NULL;
    if (SLOT(known, bound.known.returns_tuple) == Py_True)
        return handles;
    if (SLOT(known, bound.known.returns_one) == Py_True)
        result = Py_NewRef(PyTuple_GET_ITEM(handles, 0));
    else {
        PyObject *iterator = PyObject_GetIter(handles);
        if (iterator != NULL)
            result = PyObject_CallFunctionObjArgs(bound.rebuilt, SLOT(known, bound.known.returns), iterator, NULL);
        Py_XDECREF(iterator);
    }
    Py_DECREF(handles);
    return result;
}

/* One node more: a tuple of handles for its results. */
static PyObject *add_values(Key *key, PyObject *known)
{
    PyObject *recorder = key->recorder, *graph = key->graph;
    for (int i = 0; i < key->operand_count; i++) {
        PyObject *operands = SLOT(graph, bound.graph.operands);
        if (key->columns[i] != NULL) {
            long value = add_number(graph, key->columns[i], key->operands[i]);
            if (value < 0 || append_number(operands, value) < 0)
                return NULL;
            if (key->keeps_numbers &&
                PyDict_SetItem(SLOT(graph, bound.graph.number_of_value), PyList_GET_ITEM(operands, PyList_GET_SIZE(operands) - 1),
                               key->operands[i]) < 0)
                return NULL;
        }
        else if (PyLong_CheckExact(key->operands[i])) {
            if (PyList_Append(operands, key->operands[i]) < 0)
                return NULL;
        }
        else if (PyList_SetSlice(operands, PyList_GET_SIZE(operands), PyList_GET_SIZE(operands), key->operands[i]) < 0 ||
                 append_number(SLOT(graph, bound.graph.lengths), key->rows) < 0)
            return NULL;
    }
    PyObject *types = SLOT(known, bound.known.output_types);
    Py_ssize_t count = PyTuple_GET_SIZE(types);
    long value = PyLong_AsLong(SLOT(graph, bound.graph.value_count));
    PyObject *depth = PyLong_FromLong(key->depth + 1);
    if (depth == NULL)
        return NULL;
    PyObject *handles = NULL;
    if (append_node(graph, SLOT(known, bound.known.op_number)) < 0 ||
        PyList_Append(SLOT(graph, bound.graph.depth_of_node), depth) < 0)
        goto done;
    handles = PyTuple_New(count);
    for (Py_ssize_t i = 0; handles != NULL && i < count; i++) {
        PyObject *type = PyTuple_GET_ITEM(types, i), *handle = NULL;
        if (SLOT(type, bound.type.ragged) != Py_True)
            handle = new_handle(recorder, PyLong_FromLong(value++), type, depth);
        else if (append_number(SLOT(graph, bound.graph.lengths), key->rows) == 0) {
            PyObject *rows = PyObject_CallFunction((PyObject *)&PyRange_Type, "ll", value, value + (long)key->rows);
            handle = new_handle(recorder, rows, type, depth);
            value += (long)key->rows;
        }
        if (handle == NULL)
            Py_CLEAR(handles);
        else
            PyTuple_SET_ITEM(handles, i, handle);
    }
    if (handles != NULL && set_value_count(graph, value) < 0)
        Py_CLEAR(handles);
done:
    Py_DECREF(depth);
    return handles;
}

/* One node more: what the call returns. */
static PyObject *add_node(Key *key, PyObject *known)
{
    PyObject *handles = add_values(key, known);
    return handles == NULL ? NULL : as_returned(known, handles);
}

/* A node more, if the key is complete and known. The key is used up. */
static Outcome key_record(Key *key, Outcome outcome, PyObject **result)
{
    PyObject *known = NULL;
    if (outcome == FOUND)
        outcome = key_find(key, &known);
    if (outcome == FOUND) {
        *result = add_node(key, known);
        outcome = *result == NULL ? FAILED : FOUND;
    }
    Py_XDECREF(known);
    key_drop(key);
    return outcome;
}

/* ---- Cells. */

static Outcome key_add_operand(Key *key, PyObject *argument)
{
    if (Py_TYPE(argument) == bound.handle_type)
        return key_add_handle(key, argument);
    PyObject *columns = SLOT(key->graph, bound.graph.column_of_number);
    PyObject *column = PyDict_GetItemWithError(columns, (PyObject *)Py_TYPE(argument));
    if (column == NULL || key->operand_count == MOST_PARTS)
        return PyErr_Occurred() ? FAILED : UNKNOWN;
    key->columns[key->operand_count] = column;
    key->operands[key->operand_count++] = argument;
    return key_add(key, SLOT(column, bound.column.type));
}

/* Adds all leaves of nested arguments, and says how they are nested: see `nesting.flatten`. */
static Outcome key_add_nested(Key *key, PyObject *kind, PyObject *const *items, Py_ssize_t count, int levels, PyObject **nesting)
{
    if (!levels)
        return UNKNOWN;
    PyObject *parts = PyTuple_New(count);
    Outcome outcome = parts == NULL ? FAILED : FOUND;
    for (Py_ssize_t i = 0; i < count && outcome == FOUND; i++) {
        PyObject *item = items[i], *part = NULL;
        if (is_container(item))
            outcome = key_add_nested(key, (PyObject *)Py_TYPE(item), PySequence_Fast_ITEMS(item), PySequence_Fast_GET_SIZE(item),
                                     levels - 1, &part);
        else if ((outcome = key_add_operand(key, item)) == FOUND)
            part = Py_NewRef(Py_None);
        PyTuple_SET_ITEM(parts, i, part);
    }
    *nesting = outcome == FOUND ? Py_BuildValue("(OnO)", kind, count, parts) : NULL;
    Py_XDECREF(parts);
    return outcome == FOUND && *nesting == NULL ? FAILED : outcome;
}

static Outcome record_cell(PyObject *recorder, PyObject *cell, PyObject *const *args, Py_ssize_t count, PyObject **result)
{
    Outcome outcome = can_record(recorder);
    if (outcome != FOUND)
        return outcome;
    int is_nested = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        is_nested |= is_container(args[i]);
    Key key;
    key_start(&key, recorder, cell);
    if (is_nested) {
        PyObject *nesting;
        outcome = key_add_nested(&key, (PyObject *)&PyTuple_Type, args, count, MOST_LEVELS, &nesting);
        if (outcome == FOUND)
            outcome = key_take(&key, nesting);
        if (outcome == FOUND)
            outcome = key_take(&key, PyTuple_New(0)); /* no settings */
    }
    else
        for (Py_ssize_t i = 0; i < count && outcome == FOUND; i++)
            outcome = key_add_operand(&key, args[i]);
    return key_record(&key, outcome, result);
}

/* ---- Automatic cells: see `_automatic.c`. */

PyObject *current_recorder(void)
{
    if (!bound.is_bound)
        return NULL;
    PyObject *recorder = PyObject_GetAttr(bound.scope, name_recorder);
    if (recorder == NULL)
        return NULL;
    Py_DECREF(recorder); /* the thread's scope holds it */
    int is_on = Py_TYPE(recorder) == bound.recorder_type && SLOT(recorder, bound.recorder.automatic) == Py_True;
    return is_on ? recorder : NULL;
}

PyObject *type_of_handle(PyObject *recorder, PyObject *handle)
{
    if (Py_TYPE(handle) != bound.handle_type || !is_whole(handle) || SLOT(handle, bound.handle.recorder) != recorder)
        return NULL;
    PyObject *value = SLOT(handle, bound.handle.value);
    if (!PyLong_CheckExact(value)) { /* ragged: without rows, some functions do something else */
        Py_ssize_t rows = PySequence_Size(value);
        if (rows < 0)
            PyErr_Clear();
        if (rows <= 0)
            return NULL;
    }
    return SLOT(handle, bound.handle.type);
}

int is_given_handle(PyObject *recorder, PyObject *object)
{
    return Py_TYPE(object) == bound.handle_type && SLOT(object, bound.handle.recorder) != recorder;
}

PyObject *value_of_handle(PyObject *handle) { return SLOT(handle, bound.handle.value); }

Outcome record_automatic(PyObject *recorder, PyObject *trace, PyObject *const *operands, Py_ssize_t count, PyObject **handles)
{
    Outcome outcome = is_in_mode(recorder);
    if (outcome != FOUND)
        return outcome;
    Key key;
    PyObject *known = NULL;
    key_start(&key, recorder, trace);
    for (Py_ssize_t i = 0; i < count && outcome == FOUND; i++)
        outcome = key_add_operand(&key, operands[i]);
    if (outcome == FOUND)
        outcome = key_find(&key, &known);
    if (outcome == FOUND) {
        *handles = add_values(&key, known);
        if (*handles != NULL && SLOT(known, bound.known.returns) != Py_Ellipsis)
            *handles = as_returned(known, *handles);
        outcome = *handles == NULL ? FAILED : FOUND;
    }
    Py_XDECREF(known);
    key_drop(&key);
    return outcome;
}

/* ---- Functions. */

/* What is a view of a value, or holds the views, is known to it. */
static int add_view(PyObject *base, PyObject *view)
{
    PyObject *weak = PyWeakref_NewRef(view, NULL);
    int failed = weak == NULL;
    if (!failed && SLOT(base, bound.handle.views) == NULL)
        failed = (SLOT(base, bound.handle.views) = PyList_New(0)) == NULL;
    failed = failed || PyList_Append(SLOT(base, bound.handle.views), weak) < 0;
    Py_XDECREF(weak);
    return failed ? -1 : 0;
}

/* The results of a call are views of its first argument: see `views.note_views`. */
static int note_views(PyObject *graph, PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *names,
                      PyObject *const *named, PyObject *result)
{
    PyObject *base = args[0], *group = bound.views_type->tp_alloc(bound.views_type, 0);
    int is_one = Py_TYPE(result) == bound.handle_type, failed = group == NULL;
    Py_ssize_t size = is_one ? 1 : PyTuple_GET_SIZE(result);
    if (failed)
        return -1;
    PyObject *tuple = PyTuple_New(count), *settings = PyDict_New(), *weak_views = PyList_New(size);
    SLOT(group, bound.views.base) = Py_NewRef(base);
    SLOT(group, bound.views.function) = Py_NewRef(function);
    SLOT(group, bound.views.args) = tuple;
    SLOT(group, bound.views.kwargs) = settings;
    SLOT(group, bound.views.views) = weak_views;
    SLOT(group, bound.views.grad_enabled) = Py_NewRef(SLOT(graph, bound.graph.grad));
    failed = tuple == NULL || settings == NULL || weak_views == NULL;
    for (Py_ssize_t i = 0; !failed && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; !failed && names != NULL && i < PyTuple_GET_SIZE(names); i++)
        failed = PyDict_SetItem(settings, PyTuple_GET_ITEM(names, i), named[i]) < 0;
    for (Py_ssize_t i = 0; !failed && i < size; i++) {
        PyObject *view = is_one ? result : PyTuple_GET_ITEM(result, i);
        PyObject *weak = PyWeakref_NewRef(view, NULL), *number = is_one ? Py_NewRef(Py_None) : PyLong_FromSsize_t(i);
        PyObject *source = number == NULL ? NULL : PyTuple_Pack(2, group, number);
        Py_XDECREF(number);
        failed = weak == NULL || source == NULL;
        if (weak != NULL)
            PyList_SET_ITEM(weak_views, i, weak);
        SLOT(view, bound.handle.source) = source;
    }
    failed = failed || add_view(base, group) < 0;
    Py_DECREF(group);
    return failed ? -1 : 0;
}

/* A call of a value and a number, if calls with any such number are known: see `numbers.py`. */
static Outcome record_with_number(PyObject *recorder, PyObject *function, PyObject *const *args, PyObject **result)
{
    PyObject *graph = SLOT(recorder, bound.recorder.graph);
    if (SLOT(graph, bound.graph.numbers_vary) != Py_True)
        return UNKNOWN;
    Key key;
    key_start(&key, recorder, function);
    Outcome outcome = FOUND;
    for (int i = 0; i < 2 && outcome == FOUND; i++) {
        if (Py_TYPE(args[i]) == bound.handle_type) {
            outcome = key_add_handle(&key, args[i]);
            continue;
        }
        PyObject *kind = (PyObject *)Py_TYPE(args[i]);
        PyObject *column = PyDict_GetItemWithError(SLOT(graph, bound.graph.column_of_number), kind);
        if (column == NULL)
            outcome = PyErr_Occurred() ? FAILED : UNKNOWN;
        else {
            key.columns[key.operand_count] = column;
            key.operands[key.operand_count++] = args[i];
            outcome = key_add(&key, kind);
        }
    }
    if (outcome == FOUND && key.rows >= 0)
        outcome = UNKNOWN;
    return key_record(&key, outcome, result);
}

static int is_number(PyObject *object) { return PyFloat_CheckExact(object) || PyLong_CheckExact(object); }

/* A call of a function without a handler. */
static Outcome record_unhandled(PyObject *recorder, PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *names,
                                PyObject *const *named, PyObject **result)
{
    Outcome outcome = FOUND;
    Key key;
    PyObject *known = NULL;
    key_start(&key, recorder, function);
    if (names != NULL && PyTuple_GET_SIZE(names))
        outcome = key_add_named(&key, names, named);
    for (Py_ssize_t i = 0; i < count && outcome == FOUND; i++)
        outcome = key_add_argument(&key, args[i]);
    if (outcome == FOUND && !key.has_handles)
        outcome = UNKNOWN;
    if (outcome == FOUND)
        outcome = key_find(&key, &known);
    if (outcome == FOUND) {
        PyObject *shares_with = SLOT(known, bound.known.shares_with);
        int is_view = shares_with != Py_None;
        int is_ragged = SLOT(known, bound.known.is_ragged) == Py_True;
        int is_of_first = count > 0 && is_view && is_zero(shares_with) && Py_TYPE(args[0]) == bound.handle_type;
        /* Of what is a view itself, it may be a copy: that depends on how it lies in memory. */
        int may_copy = is_of_first && SLOT(args[0], bound.handle.source) != NULL ? PySet_Contains(bound.may_copy, function) : 0;
        if (may_copy < 0)
            outcome = FAILED;
        else if (may_copy || key.rows == 0 || is_ragged != (key.rows >= 0) || SLOT(known, bound.known.is_operand) == Py_True ||
                 (is_view && (is_ragged || !is_of_first || !returns_plainly(known))))
            outcome = UNKNOWN;
        else {
            *result = add_node(&key, known);
            if (*result != NULL && is_view && note_views(key.graph, function, args, count, names, named, *result) < 0)
                Py_CLEAR(*result);
            outcome = *result == NULL ? FAILED : FOUND;
        }
    }
    else if (outcome == UNKNOWN && key.has_handles && count == 2 && is_number(args[0]) != is_number(args[1]) &&
             (names == NULL || !PyTuple_GET_SIZE(names)))
        outcome = record_with_number(recorder, function, args, result);
    Py_XDECREF(known);
    key_drop(&key);
    return outcome;
}

/* One element of a value of a fixed shape, which is a view: each member of a step may take another. See `handlers._taken`. */
static Outcome record_taken(PyObject *recorder, PyObject *const *args, PyObject *place, PyObject **result)
{
    Key key;
    PyObject *known = NULL;
    key_start(&key, recorder, bound.take);
    Outcome outcome = key_add_handle(&key, args[0]);
    if (outcome == FOUND && Py_TYPE(place) == bound.handle_type)
        outcome = key_add_handle(&key, place);
    else if (outcome == FOUND) {
        key.keeps_numbers = 1;
        outcome = key_add_operand(&key, place);
    }
    if (outcome == FOUND)
        outcome = key_find(&key, &known);
    if (outcome == FOUND) {
        *result = add_node(&key, known);
        if (*result != NULL && note_views(key.graph, bound.get_item, args, 2, NULL, NULL, *result) < 0)
            Py_CLEAR(*result);
        outcome = *result == NULL ? FAILED : FOUND;
    }
    Py_XDECREF(known);
    key_drop(&key);
    return outcome;
}

/* A row of a ragged value: nothing is computed. See `views.row_handle`. */
static Outcome take_row(PyObject *recorder, PyObject *values, PyObject *index, PyObject **result)
{
    PyObject *graph = SLOT(recorder, bound.recorder.graph), *rows = SLOT(values, bound.handle.value);
    Py_ssize_t length = PySequence_Size(rows), place = PyLong_AsSsize_t(index);
    if (PyErr_Occurred() || place < -length || place >= length)
        return PyErr_Clear(), UNKNOWN;
    int is_stack = PyList_CheckExact(rows) && length > 1; /* which may have to become a node of its own */
    if (SLOT(graph, bound.graph.joins_freely) != Py_True || (is_stack && SLOT(graph, bound.graph.grad) == Py_True))
        return UNKNOWN;
    PyObject *source = PyTuple_Pack(2, values, index);
    if (source == NULL)
        return FAILED;
    *result = new_handle(recorder, PySequence_GetItem(rows, place < 0 ? place + length : place),
                         SLOT(SLOT(values, bound.handle.type), bound.type.row), SLOT(values, bound.handle.depth));
    if (*result == NULL) {
        Py_DECREF(source);
        return FAILED;
    }
    SLOT(*result, bound.handle.source) = source;
    if (add_view(values, *result) < 0)
        Py_CLEAR(*result);
    return *result == NULL ? FAILED : FOUND;
}

/* `values[index]`: see `handlers._getitem`. */
static Outcome record_item(PyObject *recorder, PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result)
{
    PyObject *values = args[0];
    if (count != 2 || (names != NULL && PyTuple_GET_SIZE(names)) || Py_TYPE(values) != bound.handle_type || !is_whole(values) ||
        SLOT(values, bound.handle.recorder) != recorder)
        return UNKNOWN;
    PyObject *index = args[1], *type = SLOT(values, bound.handle.type), *shape = SLOT(type, bound.type.shape);
    int is_ragged = SLOT(type, bound.type.ragged) == Py_True;
    if (is_ragged || PyTuple_GET_SIZE(shape) == 0)
        return is_ragged && PyLong_CheckExact(index) ? take_row(recorder, values, index, result) : UNKNOWN;
    if (Py_TYPE(index) == bound.handle_type)
        return is_whole(index) && SLOT(index, bound.handle.type) == bound.type_of_index
                   ? record_taken(recorder, args, index, result)
                   : UNKNOWN;
    if (PyLong_CheckExact(index)) {
        int is_large;
        long place = PyLong_AsLongAndOverflow(index, &is_large), length = PyLong_AsLong(PyTuple_GET_ITEM(shape, 0));
        if (is_large || place < -length || place >= length)
            return UNKNOWN;
        if (place != 0 && place != -1) {
            PyObject *from_start = PyLong_FromLong(place < 0 ? place + length : place);
            Outcome outcome = from_start == NULL ? FAILED : record_taken(recorder, args, from_start, result);
            Py_XDECREF(from_start);
            return outcome;
        }
    }
    return record_unhandled(recorder, bound.get_item, args, count, NULL, NULL, result);
}

Outcome record_function(PyObject *recorder, PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *names,
                        PyObject *const *named, PyObject **result)
{
    Outcome outcome = can_record(recorder);
    if (outcome != FOUND)
        return outcome;
    if (function == bound.get_item)
        return record_item(recorder, args, count, names, result);
    int is_handled = PyDict_Contains(bound.handlers, function);
    if (is_handled < 0 && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Clear(); /* it has no hash */
    if (is_handled)
        return PyErr_Occurred() ? FAILED : UNKNOWN;
    return record_unhandled(recorder, function, args, count, names, named, result);
}

/* ---- Modules. */

/* Whether a dictionary holds the same objects as another, and maybe more. */
static int has_items(PyObject *a, PyObject *b)
{
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(b, &position, &name, &value))
        if (PyDict_GetItem(a, name) != value)
            return 0;
    return 1;
}

/* Whether two dictionaries hold the same objects, without asking weights whether they are equal. */
static int same_items(PyObject *a, PyObject *b)
{
    return a != NULL && PyDict_Check(a) && PyDict_Check(b) && PyDict_GET_SIZE(a) == PyDict_GET_SIZE(b) && has_items(a, b);
}

static int is_empty(PyObject *dict) { return dict != NULL && PyDict_Check(dict) && PyDict_GET_SIZE(dict) == 0; }

/* See `guards.is_plain`. */
static int is_plain(PyObject *state)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(state); i++) {
        PyObject *part = PyTuple_GET_ITEM(state, i);
        PyObject **attributes = _PyObject_GetDictPtr(PyTuple_GET_ITEM(part, 0));
        if (attributes == NULL || *attributes == NULL ||
            PyDict_GetItem(*attributes, name_training) != PyTuple_GET_ITEM(part, 1) ||
            !same_items(PyDict_GetItem(*attributes, name_parameters), PyTuple_GET_ITEM(part, 2)) ||
            !same_items(PyDict_GetItem(*attributes, name_parts), PyTuple_GET_ITEM(part, 3)) ||
            !has_items(*attributes, PyTuple_GET_ITEM(part, 4)) || !is_empty(PyDict_GetItem(*attributes, name_hooks)) ||
            !is_empty(PyDict_GetItem(*attributes, name_pre_hooks)))
            return 0;
    }
    return 1;
}

Outcome module_is_plain(PyObject *recorder, PyObject *module)
{
    PyObject *states = SLOT(SLOT(recorder, bound.recorder.graph), bound.graph.module_states);
    PyObject *state = PyDict_GetItemWithError(states, module);
    if (state == NULL) /* not called in this batch before: `admit` looks */
        return PyErr_Occurred() ? FAILED : FOUND;
    return is_plain(state) ? FOUND : UNKNOWN;
}

Outcome record_module(PyObject *recorder, PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject **result)
{
    if (Py_TYPE(recorder) != bound.recorder_type)
        return UNKNOWN;
    PyObject *graph = SLOT(recorder, bound.recorder.graph), *cells = SLOT(graph, bound.graph.cells);
    if (PyDict_GET_SIZE(cells)) {
        PyObject *id = PyLong_FromVoidPtr(module);
        PyObject *cell = id == NULL ? NULL : PyDict_GetItemWithError(cells, id);
        Py_XDECREF(id);
        if (cell != NULL)
            return record_cell(recorder, cell, args, count, result);
        if (PyErr_Occurred())
            return FAILED;
    }
    int is_one = PyDict_Contains(bound.module_types, (PyObject *)Py_TYPE(module));
    if (is_one != 1)
        return is_one < 0 ? FAILED : UNKNOWN;
    Outcome outcome = can_record(recorder);
    if (outcome != FOUND)
        return outcome;
    PyObject *state = PyDict_GetItemWithError(SLOT(graph, bound.graph.module_states), module);
    if (state == NULL || !is_plain(state))
        return PyErr_Occurred() ? FAILED : UNKNOWN;
    Key key;
    key_start(&key, recorder, module);
    for (Py_ssize_t i = 0; i < count && outcome == FOUND; i++) {
        int is_tuple = PyTuple_CheckExact(args[i]);
        Py_ssize_t size = is_tuple ? PyTuple_GET_SIZE(args[i]) : 1;
        for (Py_ssize_t j = 0; j < size && outcome == FOUND; j++) {
            PyObject *item = is_tuple ? PyTuple_GET_ITEM(args[i], j) : args[i];
            outcome = Py_TYPE(item) == bound.handle_type ? key_add_handle(&key, item) : UNKNOWN;
        }
    }
    return key_record(&key, outcome, result);
}

/* ---- What torch reports to `RecordingMode`: (mode, function, types, args, kwargs). */

static Outcome record_number(PyObject *recorder, PyObject *args, PyObject **result)
{
    if (PyTuple_GET_SIZE(args) != 1 || !PyLong_CheckExact(PyTuple_GET_ITEM(args, 0)))
        return UNKNOWN;
    PyObject *number = PyTuple_GET_ITEM(args, 0), *current = PyObject_GetAttr(bound.scope, name_recorder);
    if (current == NULL)
        return FAILED;
    int is_current = current == recorder;
    Py_DECREF(current);
    PyObject *graph = SLOT(recorder, bound.recorder.graph);
    if (!is_current || !PyList_CheckExact(SLOT(graph, bound.graph.op_of_node)))
        return UNKNOWN;
    PyObject *column = PyDict_GetItemWithError(SLOT(graph, bound.graph.column_of_number), (PyObject *)&PyLong_Type);
    if (column == NULL)
        return PyErr_Occurred() ? FAILED : UNKNOWN;
    long value = add_number(graph, column, number);
    PyObject *depth = value < 0 ? NULL : PyLong_FromLong(0);
    *result = depth == NULL ? NULL : new_handle(recorder, PyLong_FromLong(value), SLOT(column, bound.column.type), depth);
    Py_XDECREF(depth);
    if (*result != NULL &&
        PyDict_SetItem(SLOT(graph, bound.graph.number_of_value), SLOT(*result, bound.handle.value), number) < 0)
        Py_CLEAR(*result);
    return *result == NULL ? FAILED : FOUND;
}

/* A list of values of one type, stacked, is a ragged value: nothing is computed. See `handlers._ragged`. */
static Outcome stacked(PyObject *recorder, PyObject *args, PyObject **result)
{
    if (PyTuple_GET_SIZE(args) != 1 || !is_container(PyTuple_GET_ITEM(args, 0)))
        return UNKNOWN;
    Outcome outcome = can_record(recorder);
    if (outcome != FOUND || SLOT(SLOT(recorder, bound.recorder.graph), bound.graph.joins_freely) != Py_True)
        return outcome == FOUND ? UNKNOWN : outcome;
    PyObject *items = PyTuple_GET_ITEM(args, 0), *row = NULL, *depth = NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    long deepest = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, i);
        if (Py_TYPE(item) != bound.handle_type || !is_whole(item) || SLOT(item, bound.handle.recorder) != recorder ||
            (row != NULL && SLOT(item, bound.handle.type) != row) || !PyLong_CheckExact(SLOT(item, bound.handle.value)))
            return UNKNOWN;
        row = SLOT(item, bound.handle.type);
        if (PyLong_AsLong(SLOT(item, bound.handle.depth)) > deepest) {
            depth = SLOT(item, bound.handle.depth);
            deepest = PyLong_AsLong(depth);
        }
    }
    PyObject *type = row == NULL ? NULL : PyDict_GetItemWithError(bound.type_of_stack, row);
    if (type == NULL)
        return PyErr_Occurred() ? FAILED : UNKNOWN;
    PyObject *values = PyList_New(count);
    for (Py_ssize_t i = 0; values != NULL && i < count; i++)
        PyList_SET_ITEM(values, i, Py_NewRef(SLOT(PySequence_Fast_GET_ITEM(items, i), bound.handle.value)));
    *result = new_handle(recorder, values, type, depth);
    return *result == NULL ? FAILED : FOUND;
}

static Outcome record_reported(PyObject *const *given, Py_ssize_t count, PyObject **result)
{
    if (count < 4 || !PyTuple_CheckExact(given[3]))
        return UNKNOWN;
    PyObject *function = given[1], *args = given[3], *kwargs = count > 4 ? given[4] : Py_None;
    PyObject *recorder = PyObject_GetAttr(given[0], name_own_recorder);
    if (recorder == NULL)
        return FAILED;
    Outcome outcome = UNKNOWN;
    if (Py_TYPE(recorder) != bound.recorder_type)
        goto done;
    if (kwargs != Py_None && !PyDict_CheckExact(kwargs))
        goto done;
    int has_settings = kwargs != Py_None && PyDict_GET_SIZE(kwargs);
    if (function == bound.make_tensor && !has_settings) {
        outcome = record_number(recorder, args, result);
        goto done;
    }
    if (function == bound.stack && !has_settings) {
        outcome = stacked(recorder, args, result);
        goto done;
    }
    PyObject *const *items = ((PyTupleObject *)args)->ob_item;
    if (!has_settings) {
        outcome = record_function(recorder, function, items, PyTuple_GET_SIZE(args), NULL, NULL, result);
        goto done;
    }
    if (PyDict_GET_SIZE(kwargs) > MOST_PARTS)
        goto done;
    PyObject *named[MOST_PARTS], *name, *value, *names = PyTuple_New(PyDict_GET_SIZE(kwargs));
    if (names == NULL) {
        outcome = FAILED;
        goto done;
    }
    Py_ssize_t position = 0, i = 0;
    while (PyDict_Next(kwargs, &position, &name, &value)) {
        PyTuple_SET_ITEM(names, i, Py_NewRef(name));
        named[i++] = value;
    }
    outcome = record_function(recorder, function, items, PyTuple_GET_SIZE(args), names, named, result);
    Py_DECREF(names);
done:
    Py_DECREF(recorder);
    return outcome;
}

/* ---- What waits ask. */

/* What nodes of one op have in common: see `reading._form_of`. */
typedef struct {
    int64_t operands, values; /* of fixed shapes */
    int64_t ragged_operands, ragged_values;
    int64_t kind;
} Form;

enum { COMPUTES, READS, GIVEN };

typedef struct {
    PyObject *op_of_node, *operands, *lengths; /* lists of a graph under construction */
    long value_count;
    const Form *forms;
    Py_ssize_t form_count;
} Nodes;

/* Whether a value may follow from what was given: it does not if the node that computes it, or one that this one reads, is among the
   last and cannot be read. */
static int may_follow(const Nodes *nodes, long value, int levels, int farthest)
{
    Py_ssize_t operand = PyList_GET_SIZE(nodes->operands), length = PyList_GET_SIZE(nodes->lengths);
    long first = nodes->value_count;
    for (Py_ssize_t node = PyList_GET_SIZE(nodes->op_of_node) - 1; node >= 0 && farthest > 0; node--, farthest--) {
        long number = PyLong_AsLong(PyList_GET_ITEM(nodes->op_of_node, node));
        if (number < 0 || number >= nodes->form_count)
            return 1;
        const Form *form = &nodes->forms[number];
        long values = (long)form->values, count = (long)form->operands;
        for (int64_t i = 0; i < form->ragged_values && length > 0; i++)
            values += PyLong_AsLong(PyList_GET_ITEM(nodes->lengths, --length));
        for (int64_t i = 0; i < form->ragged_operands && length > 0; i++)
            count += PyLong_AsLong(PyList_GET_ITEM(nodes->lengths, --length));
        first -= values;
        operand -= count;
        if (operand < 0)
            return 1;
        if (first > value)
            continue;
        if (form->kind != READS || !levels)
            return form->kind != COMPUTES;
        for (Py_ssize_t i = operand; i < operand + count; i++)
            if (!may_follow(nodes, PyLong_AsLong(PyList_GET_ITEM(nodes->operands, i)), levels - 1, farthest))
                return 0;
        return 1;
    }
    return 1; /* recorded long ago, or computed */
}

static PyObject *follows(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *graph;
    Py_buffer forms;
    long value;
    if (!PyArg_ParseTuple(args, "Oy*l", &graph, &forms, &value))
        return NULL;
    Nodes nodes = {
        SLOT(graph, bound.graph.op_of_node),
        SLOT(graph, bound.graph.operands),
        SLOT(graph, bound.graph.lengths),
        PyLong_AsLong(SLOT(graph, bound.graph.value_count)),
        forms.buf,
        forms.len / (Py_ssize_t)sizeof(Form),
    };
    int is_watched = !PyList_CheckExact(nodes.op_of_node); /* an observer's list is one that C may not look into */
    int answer = is_watched || may_follow(&nodes, value, MOST_LEVELS, FARTHEST);
    PyBuffer_Release(&forms);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(answer);
}

/* Whether the memory at an address holds these bytes: what `ctypes` answers only with a copy of it. */
static PyObject *holds_bytes(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long address;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(args, "Ky*", &address, &bytes))
        return NULL;
    int same = memcmp((const void *)(uintptr_t)address, bytes.buf, (size_t)bytes.len) == 0;
    PyBuffer_Release(&bytes);
    return PyBool_FromLong(same);
}

/* Whether functions without arguments answer all of these. */
static PyObject *answers_are(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyTuple_CheckExact(args[0]) || !PyTuple_CheckExact(args[1]) ||
        PyTuple_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[1]))
        return PyErr_Format(PyExc_TypeError, "as many answers as functions are wanted, both as tuples");
    int same = 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]) && same == 1; i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(args[0], i));
        if (answer == NULL)
            return NULL;
        same = PyObject_RichCompareBool(answer, PyTuple_GET_ITEM(args[1], i), Py_EQ);
        Py_DECREF(answer);
    }
    return same < 0 ? NULL : PyBool_FromLong(same);
}

/* ---- Methods that try this first. Those of a recorder are given (recorder, cell or module, args, settings); they are not `__call__`
   itself, because torch.compile must be able to read that. */

typedef enum { CELL, MODULE, METHOD, OPERATOR, REFLECTED, REPORTED } Kind;

typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    Kind kind;
    PyObject *otherwise; /* the Python function */
    PyObject *function;  /* what a method records, or NULL */
    PyObject *weak, *attributes;
} FastPath;

static Outcome recorded(FastPath *self, PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result)
{
    if (!bound.is_bound || count == 0)
        return UNKNOWN;
    if (self->kind == METHOD || self->kind == OPERATOR || self->kind == REFLECTED) {
        if (Py_TYPE(args[0]) != bound.handle_type || !is_whole(args[0]))
            return UNKNOWN;
        PyObject *recorder = SLOT(args[0], bound.handle.recorder);
        if (self->kind == METHOD)
            return record_function(recorder, self->function, args, count, names, args + count, result);
        if (count != 2 || (names != NULL && PyTuple_GET_SIZE(names)))
            return UNKNOWN;
        PyObject *both[2] = {args[self->kind == REFLECTED], args[self->kind == OPERATOR]};
        return record_function(recorder, self->function, both, 2, NULL, NULL, result);
    }
    if (names != NULL && PyTuple_GET_SIZE(names))
        return UNKNOWN;
    if (self->kind == REPORTED)
        return record_reported(args, count, result);
    if (count != 4 || !PyTuple_CheckExact(args[2]) || !is_empty(args[3]))
        return UNKNOWN;
    PyObject *const *items = ((PyTupleObject *)args[2])->ob_item;
    return (self->kind == CELL ? record_cell : record_module)(args[0], args[1], items, PyTuple_GET_SIZE(args[2]), result);
}

static PyObject *fast_path_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    FastPath *self = (FastPath *)callable;
    PyObject *result = NULL;
    switch (recorded(self, args, PyVectorcall_NARGS(flags), names, &result)) {
    case FOUND:
        return result;
    case FAILED:
        return NULL;
    default:
        return PyObject_Vectorcall(self->otherwise, args, flags & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
    }
}

static PyObject *fast_path_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static int fast_path_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((FastPath *)self)->otherwise);
    Py_VISIT(((FastPath *)self)->function);
    Py_VISIT(((FastPath *)self)->attributes);
    return 0;
}

static int fast_path_clear(PyObject *self)
{
    Py_CLEAR(((FastPath *)self)->otherwise);
    Py_CLEAR(((FastPath *)self)->function);
    Py_CLEAR(((FastPath *)self)->attributes);
    return 0;
}

static void fast_path_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    fast_path_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef fast_path_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(FastPath, otherwise), READONLY, "The Python function that this stands in front of."},
    {NULL},
};

static PyTypeObject FastPathType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "foldloom.tracing._fast_path.FastPath",
    .tp_doc = "A Python function with a fast path in front of it, for calls of known signatures.",
    .tp_basicsize = sizeof(FastPath),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(FastPath, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = fast_path_get,
    .tp_traverse = fast_path_traverse,
    .tp_clear = fast_path_clear,
    .tp_dealloc = fast_path_dealloc,
    .tp_weaklistoffset = offsetof(FastPath, weak),
    .tp_dictoffset = offsetof(FastPath, attributes),
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_members = fast_path_members,
};

static PyObject *new_fast_path(Kind kind, PyObject *otherwise, PyObject *function)
{
    FastPath *self = PyObject_GC_New(FastPath, &FastPathType);
    if (self == NULL)
        return NULL;
    self->vectorcall = fast_path_call;
    self->kind = kind;
    self->otherwise = Py_NewRef(otherwise);
    self->function = Py_XNewRef(function);
    self->weak = NULL;
    self->attributes = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *cell(PyObject *module, PyObject *otherwise)
{
    (void)module;
    return new_fast_path(CELL, otherwise, NULL);
}

static PyObject *module_call(PyObject *module, PyObject *otherwise)
{
    (void)module;
    return new_fast_path(MODULE, otherwise, NULL);
}

static PyObject *reported(PyObject *module, PyObject *otherwise)
{
    (void)module;
    return new_fast_path(REPORTED, otherwise, NULL);
}

static PyObject *method(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *function, *otherwise;
    return PyArg_ParseTuple(args, "OO", &function, &otherwise) ? new_fast_path(METHOD, otherwise, function) : NULL;
}

static PyObject *operator(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *function, *otherwise;
    return PyArg_ParseTuple(args, "OO", &function, &otherwise) ? new_fast_path(OPERATOR, otherwise, function) : NULL;
}

static PyObject *reflected(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *function, *otherwise;
    return PyArg_ParseTuple(args, "OO", &function, &otherwise) ? new_fast_path(REFLECTED, otherwise, function) : NULL;
}

/* ---- Binding. */

static int find_slot(PyObject *type, const char *name, Py_ssize_t *offset)
{
    PyObject *member = PyObject_GetAttrString(type, name);
    if (member == NULL)
        return -1;
    if (Py_TYPE(member) != &PyMemberDescr_Type) {
        PyErr_Format(PyExc_TypeError, "%s of %R is not one of its __slots__", name, type);
        Py_DECREF(member);
        return -1;
    }
    *offset = ((PyMemberDescrObject *)member)->d_member->offset;
    Py_DECREF(member);
    return 0;
}

/* Say what handles are, and how one is made. From then on they are used again. */
static PyObject *bind_handles(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *type, *freed, *type_of_value, *make_handle;
    if (!PyArg_ParseTuple(args, "O!O!O!O", &PyType_Type, &type, &PyType_Type, &freed, &PyType_Type, &type_of_value, &make_handle))
        return NULL;
    struct {
        const char *name;
        Py_ssize_t *offset;
    } slots[] = {
        {"_recorder", &bound.handle.recorder}, {"_value", &bound.handle.value},   {"_type", &bound.handle.type},
        {"_depth", &bound.handle.depth},       {"_source", &bound.handle.source}, {"_views", &bound.handle.views},
        {"_place", &bound.handle.place},
    };
    for (size_t i = 0; i < sizeof(slots) / sizeof(*slots); i++) {
        Py_ssize_t offset;
        if (find_slot(type, slots[i].name, slots[i].offset) < 0 || find_slot(freed, slots[i].name, &offset) < 0)
            return NULL;
        if (offset != *slots[i].offset || ((PyTypeObject *)freed)->tp_basicsize != ((PyTypeObject *)type)->tp_basicsize)
            return PyErr_Format(PyExc_TypeError, "the type of freed handles has another layout");
    }
    if (find_slot(type_of_value, "dtype", &bound.handle.dtype) < 0)
        return NULL;
    bound.handle_type = (PyTypeObject *)Py_NewRef(type); /* for as long as the process lives */
    bound.make_handle = Py_NewRef(make_handle);
    bound.freed_type = (PyTypeObject *)Py_NewRef(freed);
    bound.handle_type->tp_dealloc = handle_dealloc;
    bound.handle_type->tp_clear = handle_clear;
    Py_RETURN_NONE;
}

static PyObject *bind(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    (void)args;
    PyObject *recorder, *graph, *known, *column, *views, *type;
    struct {
        const char *name;
        PyObject **place;
    } meant[] = {
        {"recorder", &recorder},
        {"graph", &graph},
        {"known", &known},
        {"column", &column},
        {"views", &views},
        {"type", &type},
        {"is_grad_enabled", &bound.is_grad_enabled},
        {"is_autocast_enabled", &bound.is_autocast_enabled},
        {"scope", &bound.scope},
        {"handlers", &bound.handlers},
        {"module_types", &bound.module_types},
        {"parameter", &bound.parameter_type},
        {"tensor", &bound.tensor_type},
        {"plain_types", &bound.plain_types},
        {"may_copy", &bound.may_copy},
        {"rebuilt", &bound.rebuilt},
        {"make_tensor", &bound.make_tensor},
        {"stack", &bound.stack},
        {"type_of_stack", &bound.type_of_stack},
        {"may_be_caught", &bound.may_be_caught},
        {"get_item", &bound.get_item},
        {"take", &bound.take},
        {"type_of_index", &bound.type_of_index},
    };
    for (size_t i = 0; i < sizeof(meant) / sizeof(*meant); i++) {
        PyObject *value = kwargs == NULL ? NULL : PyDict_GetItemString(kwargs, meant[i].name);
        if (value == NULL)
            return PyErr_Format(PyExc_TypeError, "bind() is not told what %s is", meant[i].name);
        *meant[i].place = Py_NewRef(value); /* for as long as the process lives */
    }
    struct {
        PyObject *type;
        const char *name;
        Py_ssize_t *offset;
    } slots[] = {
        {views, "base", &bound.views.base},
        {views, "function", &bound.views.function},
        {views, "args", &bound.views.args},
        {views, "kwargs", &bound.views.kwargs},
        {views, "grad_enabled", &bound.views.grad_enabled},
        {views, "_views", &bound.views.views},
        {recorder, "graph", &bound.recorder.graph},
        {recorder, "automatic", &bound.recorder.automatic},
        {graph, "op_of_node", &bound.graph.op_of_node},
        {graph, "operands", &bound.graph.operands},
        {graph, "depth_of_node", &bound.graph.depth_of_node},
        {graph, "lengths", &bound.graph.lengths},
        {graph, "value_count", &bound.graph.value_count},
        {graph, "calls", &bound.graph.calls},
        {graph, "grad", &bound.graph.grad},
        {graph, "autocast", &bound.graph.autocast},
        {graph, "joins_freely", &bound.graph.joins_freely},
        {graph, "column_of_number", &bound.graph.column_of_number},
        {graph, "number_of_value", &bound.graph.number_of_value},
        {graph, "module_states", &bound.graph.module_states},
        {graph, "shared_tensors", &bound.graph.shared_tensors},
        {graph, "numbers_vary", &bound.graph.numbers_vary},
        {graph, "cells", &bound.graph.cells},
        {known, "op_number", &bound.known.op_number},
        {known, "output_types", &bound.known.output_types},
        {known, "returns", &bound.known.returns},
        {known, "returns_one", &bound.known.returns_one},
        {known, "returns_tuple", &bound.known.returns_tuple},
        {known, "shares_with", &bound.known.shares_with},
        {known, "is_operand", &bound.known.is_operand},
        {known, "is_ragged", &bound.known.is_ragged},
        {known, "may_raise", &bound.known.may_raise},
        {column, "op_number", &bound.column.op_number},
        {column, "type", &bound.column.type},
        {column, "values", &bound.column.values},
        {type, "ragged", &bound.type.ragged},
        {type, "shape", &bound.type.shape},
        {type, "row", &bound.type.row},
    };
    for (size_t i = 0; i < sizeof(slots) / sizeof(*slots); i++)
        if (find_slot(slots[i].type, slots[i].name, slots[i].offset) < 0)
            return NULL;
    bound.recorder_type = (PyTypeObject *)recorder;
    bound.known_type = (PyTypeObject *)known;
    bound.views_type = (PyTypeObject *)views;
    bound.is_bound = bound.handle_type != NULL;
    Py_RETURN_NONE;
}

/* The whole numbers of a list as eight bytes each: what numpy does, without asking each of them what it is. */
static PyObject *numbers(PyObject *self, PyObject *list)
{
    (void)self;
    if (!PyList_CheckExact(list))
        return PyErr_Format(PyExc_TypeError, "numbers of a list are wanted, not of a %s", Py_TYPE(list)->tp_name);
    Py_ssize_t size = PyList_GET_SIZE(list);
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, size * (Py_ssize_t)sizeof(int64_t));
    if (bytes == NULL)
        return NULL;
    int64_t *packed = (int64_t *)PyByteArray_AS_STRING(bytes);
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *number = PyList_GET_ITEM(list, i);
        if (!PyLong_Check(number)) /* whose conversion could change the list */
            PyErr_Format(PyExc_TypeError, "a column holds whole numbers, not a %s", Py_TYPE(number)->tp_name);
        else
            packed[i] = PyLong_AsLongLong(number);
        if (PyErr_Occurred()) {
            Py_DECREF(bytes);
            return NULL;
        }
    }
    return bytes;
}

/* The example of each node, eight bytes each; the last example that has any, and whether they come in order. */
static PyObject *examples_of_nodes(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *segments;
    Py_ssize_t nodes;
    if (!PyArg_ParseTuple(args, "O!n", &PyList_Type, &segments, &nodes))
        return NULL;
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, nodes * (Py_ssize_t)sizeof(int64_t));
    if (bytes == NULL)
        return NULL;
    int64_t *of_node = (int64_t *)PyByteArray_AS_STRING(bytes);
    long largest = 0, last = -1;
    int in_turn = 1;
    for (Py_ssize_t i = 0, count = PyList_GET_SIZE(segments); i < count; i++) {
        PyObject *segment = PyList_GET_ITEM(segments, i), *next = i + 1 < count ? PyList_GET_ITEM(segments, i + 1) : NULL;
        if (!PyTuple_CheckExact(segment) || PyTuple_GET_SIZE(segment) != 2 ||
            (next != NULL && (!PyTuple_CheckExact(next) || PyTuple_GET_SIZE(next) != 2))) {
            PyErr_SetString(PyExc_TypeError, "a segment is an example and its first node");
            break;
        }
        long example = PyLong_AsLong(PyTuple_GET_ITEM(segment, 0)), node = PyLong_AsLong(PyTuple_GET_ITEM(segment, 1));
        long end = next == NULL ? (long)nodes : PyLong_AsLong(PyTuple_GET_ITEM(next, 1));
        if (!PyErr_Occurred() && (node < 0 || node > end || end > nodes))
            PyErr_SetString(PyExc_IndexError, "segments begin at nodes that there are, one after the other");
        if (PyErr_Occurred())
            break;
        if (node == end)
            continue;
        in_turn &= example > last;
        last = example;
        largest = example > largest ? example : largest;
        for (; node < end; node++)
            of_node[node] = example;
    }
    PyObject *result = PyErr_Occurred() ? NULL : Py_BuildValue("OlO", bytes, largest, in_turn ? Py_True : Py_False);
    Py_DECREF(bytes);
    return result;
}

static PyMethodDef functions[] = {
    {"bind", (PyCFunction)(void (*)(void))bind, METH_VARARGS | METH_KEYWORDS, "Say what types and functions are meant."},
    {"bind_handles", bind_handles, METH_VARARGS, "Say what handles are, and how one is made."},
    {"handles_of", handles_of, METH_O, "All handles of a recorder that somebody holds."},
    {"handles_since", handles_since, METH_VARARGS, "All handles of values of a recorder from one on that somebody holds."},
    {"forget_handle", forget_handle, METH_O, "Empty a handle that stands for nothing any more."},
    {"handle", (PyCFunction)(void (*)(void))handle, METH_FASTCALL,
     "A handle of recorder, value, type, depth and perhaps a source."},
    {"cell", cell, METH_O, "For the method of a recorder that records a cell."},
    {"module", module_call, METH_O, "For the method of a recorder that records a module."},
    {"reported", reported, METH_O, "For the method of a mode that torch reports calls to."},
    {"method", method, METH_VARARGS, "For a method of handles, which records a function."},
    {"operator", operator, METH_VARARGS, "For one of two arguments, which have no names."},
    {"reflected", reflected, METH_VARARGS, "For one that takes them the other way round."},
    {"numbers", numbers, METH_O, "The whole numbers of a list as eight bytes each."},
    {"examples_of_nodes", examples_of_nodes, METH_VARARGS, "The example of each node, by where the nodes of each begin."},
    {"follows", follows, METH_VARARGS, "Whether a value of a graph may follow from what was given."},
    {"answers_are", (PyCFunction)(void (*)(void))answers_are, METH_FASTCALL, "Whether functions answer these."},
    {"holds_bytes", holds_bytes, METH_VARARGS, "Whether the memory at an address holds these bytes."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "foldloom.tracing._fast_path",
    .m_doc = "The fast path: calls of known signatures, recorded without running Python.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__fast_path(void)
{
    struct {
        PyObject **place;
        const char *text;
    } names[] = {
        {&name_recorder, "recorder"},
        {&name_own_recorder, "_recorder"},
        {&name_training, "training"},
        {&name_parameters, "_parameters"},
        {&name_parts, "_modules"},
        {&name_hooks, "_forward_hooks"},
        {&name_pre_hooks, "_forward_pre_hooks"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL)
            return NULL;
    if (PyType_Ready(&FastPathType) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && ready_automatic(module) < 0)
        Py_CLEAR(module);
    return module;
}
