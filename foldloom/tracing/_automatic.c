/* Automatic cells: calls of Python functions that are recorded as one node, without running their Python.

   While a batch is recorded, Python asks `evaluate` to run each function of the user's (PEP 523). For a function that was captured before
   (see `automatic/capture.py`) there are traces: what the call records, and a small program of reads and checks, the *guards*, that says when.
   If the guards of a trace hold, the call is one node. Otherwise Python runs the function as ever.

   Three more kinds of frames are answered here, because their Python takes longer than what it does: `nn.Module.__call__`,
   `nn.Module.__getattr__`, and those functions of torch that are written in Python (`torch.nn.functional`).

   A guard program works on registers. The first are the arguments of the call, the next is the function itself; a read fills one more. Every
   object that a guard expects is held weakly, where that can be, so that traces keep no model alive. */

#include "_automatic.h"

#include <stddef.h>

#define MOST_REGISTERS 128
#define MOST_STACK (1 << 20) /* bytes */
#define MOST_ARGUMENTS 16    /* of torch's functions */
#define MOST_TRACES 32       /* of one function: a module has one for each object of its class */
#define FEW_TRACES                                                                                                               \
    4 /* of one function may be made before they are of use; of methods of modules, which a model has many of, all */

typedef enum {
    READ_GLOBAL,
    READ_BUILTIN,
    READ_CLOSURE,
    READ_DEFAULT,
    READ_KEYWORD_DEFAULT,
    READ_ATTRIBUTE,
    READ_PART,
    READ_SLOT,
    READ_ITEM,
    READ_ENTRY,
    READ_LOCAL,
    READ_CELL,
    READ_CONSTANT,
    CHECK_IS,
    CHECK_TYPE,
    CHECK_EQUAL,
    CHECK_HANDLE,
    CHECK_NUMBER,
    CHECK_LENGTH,
    CHECK_CODE,
    CHECK_ABSENT,
    CHECK_STATE,
    CHECK_UNHOOKED,
    CHECK_KEYS,
    CHECK_SAME,
    GUARD_KINDS,
} GuardKind;

static const char *const guard_names[] = {
    "READ_GLOBAL",    "READ_BUILTIN", "READ_CLOSURE",   "READ_DEFAULT", "READ_KEYWORD_DEFAULT",
    "READ_ATTRIBUTE", "READ_PART",    "READ_SLOT",      "READ_ITEM",    "READ_ENTRY",
    "READ_LOCAL",     "READ_CELL",    "READ_CONSTANT",  "CHECK_IS",     "CHECK_TYPE",
    "CHECK_EQUAL",    "CHECK_HANDLE", "CHECK_NUMBER",   "CHECK_LENGTH", "CHECK_CODE",
    "CHECK_ABSENT",   "CHECK_STATE",  "CHECK_UNHOOKED", "CHECK_KEYS",   "CHECK_SAME",
};

struct Guard {
    GuardKind kind;
    int source;      /* the register that is read from or checked */
    long number;     /* which item, how many, which other register, which variable */
    PyObject *name;  /* owned, or NULL: of an attribute, or what is expected */
    PyObject *other; /* owned, or NULL: the dictionary of a module that holds a part */
};

static struct {
    PyObject *follows; /* asked whether a function may be captured, and for the form in which torch reports one of its own */
    PyObject *divide;  /* asked for the code of a function that was divided into segments */
    PyObject *module_call, *module_getattr; /* the codes of nn.Module.__call__ and __getattr__ */
    PyObject *parameter_type;
    PyObject *capture;      /* asked to capture a call */
    PyObject *admit;        /* asked to make a trace known to a recorder */
    PyObject *own;          /* asked to make a given tensor a value, if it should be */
    PyObject *guarded;      /* names of attributes that examples write */
    PyObject *global_hooks; /* dictionaries of hooks on all modules */
} told;

static PyObject *name_modules_hooks[4], *name_forward, *name_compiled, *name_parameters, *name_buffers, *name_parts;

static int enough_calls = 3; /* of a function, before it is captured */

__thread int is_asking; /* whether Python is asked here, whose own functions run as ever */

PyObject *asked(PyObject *answer)
{
    is_asking--;
    return answer;
}

/* ---- Traces. */

static int trace_traverse(PyObject *self, visitproc visit, void *arg)
{
    Trace *trace = (Trace *)self;
    for (Py_ssize_t i = 0; i < trace->guard_count; i++) {
        Py_VISIT(trace->guards[i].name);
        Py_VISIT(trace->guards[i].other);
    }
    Py_VISIT(trace->rebuild);
    Py_VISIT(trace->appends);
    Py_VISIT(trace->attributes);
    return 0;
}

static int trace_clear(PyObject *self)
{
    Trace *trace = (Trace *)self;
    Py_ssize_t count = trace->guard_count;
    trace->guard_count = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_CLEAR(trace->guards[i].name);
        Py_CLEAR(trace->guards[i].other);
    }
    Py_CLEAR(trace->rebuild);
    Py_CLEAR(trace->appends);
    Py_CLEAR(trace->attributes);
    return 0;
}

static void trace_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    trace_clear(self);
    PyMem_Free(((Trace *)self)->guards);
    PyMem_Free(((Trace *)self)->operands);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *trace_calls(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((Trace *)self)->calls);
}

static PyGetSetDef trace_getset[] = {
    {"calls", trace_calls, NULL, "How many calls were recorded by it.", NULL},
    {NULL},
};

PyTypeObject TraceType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "foldloom.tracing._fast_path.Trace",
    .tp_doc = "What a call of a function records, and the guards that say when.",
    .tp_basicsize = sizeof(Trace),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = trace_traverse,
    .tp_clear = trace_clear,
    .tp_dealloc = trace_dealloc,
    .tp_weaklistoffset = offsetof(Trace, weak),
    .tp_dictoffset = offsetof(Trace, attributes),
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_getset = trace_getset,
};

/* trace(guards, operands, first_free, rebuild, appends): guards are tuples of kind, source, number, name, other. */
static PyObject *new_trace(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *guards, *operands, *rebuild, *appends;
    int first_free;
    if (!PyArg_ParseTuple(args, "O!O!iOO!", &PyTuple_Type, &guards, &PyTuple_Type, &operands, &first_free, &rebuild,
                          &PyTuple_Type, &appends))
        return NULL;
    Trace *trace = PyObject_GC_New(Trace, &TraceType);
    if (trace == NULL)
        return NULL;
    Py_ssize_t guard_count = PyTuple_GET_SIZE(guards), operand_count = PyTuple_GET_SIZE(operands);
    trace->weak = trace->attributes = NULL;
    trace->rebuild = Py_NewRef(rebuild);
    trace->appends = Py_NewRef(appends);
    trace->guard_count = 0;
    trace->operand_count = operand_count;
    trace->first_free = first_free;
    trace->calls = 0;
    trace->guards = PyMem_Calloc((size_t)guard_count + 1, sizeof(Guard));
    trace->operands = PyMem_Calloc((size_t)operand_count + 1, sizeof(int));
    PyObject_GC_Track((PyObject *)trace);
    int registers = first_free;
    if (trace->guards == NULL || trace->operands == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t i = 0; i < guard_count; i++) {
        Guard *guard = &trace->guards[i];
        PyObject *name, *other;
        int kind;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(guards, i), "iilOO", &kind, &guard->source, &guard->number, &name, &other))
            goto failed;
        if (kind < 0 || kind >= GUARD_KINDS || guard->source < 0 || guard->source >= registers ||
            (kind == CHECK_SAME && (guard->number < 0 || guard->number >= registers))) {
            PyErr_SetString(PyExc_ValueError, "a guard reads a register that nobody has filled");
            goto failed;
        }
        guard->kind = (GuardKind)kind;
        guard->name = Py_NewRef(name);
        guard->other = Py_NewRef(other);
        trace->guard_count = i + 1;
        registers += kind <= READ_CONSTANT;
    }
    for (Py_ssize_t i = 0; i < operand_count; i++) {
        long number = PyLong_AsLong(PyTuple_GET_ITEM(operands, i));
        if (number < 0 || number >= registers) {
            PyErr_SetString(PyExc_ValueError, "an operand is in a register that nobody has filled");
            goto failed;
        }
        trace->operands[i] = (int)number;
    }
    if (registers > MOST_REGISTERS) {
        PyErr_SetString(PyExc_ValueError, "a trace reads too much");
        goto failed;
    }
    return (PyObject *)trace;
failed:
    Py_DECREF(trace);
    return NULL;
}

/* ---- Guards. */

static PyObject *attributes_of(PyObject *object)
{
    PyObject **place = _PyObject_GetDictPtr(object);
    return place == NULL ? NULL : *place;
}

/* What a weak reference refers to, or the object itself, borrowed. */
static PyObject *referred(PyObject *expected) { return PyWeakref_CheckRef(expected) ? PyWeakref_GET_OBJECT(expected) : expected; }

static int is_empty_dict(PyObject *dict) { return dict != NULL && PyDict_Check(dict) && PyDict_GET_SIZE(dict) == 0; }

/* Whether a plain value is another: of the same type and equal, with 0.0 and -0.0 told apart. */
static int is_equal(PyObject *value, PyObject *expected)
{
    if (value == expected)
        return 1;
    if (Py_TYPE(value) != Py_TYPE(expected))
        return 0;
    if (PyFloat_CheckExact(value)) {
        double a = PyFloat_AS_DOUBLE(value), b = PyFloat_AS_DOUBLE(expected);
        return memcmp(&a, &b, sizeof(double)) == 0;
    }
    return PyObject_RichCompareBool(value, expected, Py_EQ);
}

static int is_unhooked(PyObject *module)
{
    PyObject *attributes = attributes_of(module);
    if (attributes == NULL)
        return 0;
    for (int i = 0; i < 4; i++)
        if (!is_empty_dict(PyDict_GetItem(attributes, name_modules_hooks[i])))
            return 0;
    PyObject *compiled = PyDict_GetItem(attributes, name_compiled);
    if (PyDict_GetItem(attributes, name_forward) != NULL || (compiled != NULL && compiled != Py_None))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(told.global_hooks); i++)
        if (!is_empty_dict(PyTuple_GET_ITEM(told.global_hooks, i)))
            return 0;
    return 1;
}

static int has_keys(PyObject *dict, PyObject *keys)
{
    PyObject *key;
    Py_ssize_t position = 0, i = 0;
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys))
        return 0;
    while (PyDict_Next(dict, &position, &key, NULL)) {
        PyObject *expected = PyTuple_GET_ITEM(keys, i++);
        if (key != expected) {
            int equal = Py_TYPE(key) == Py_TYPE(expected) ? PyObject_RichCompareBool(key, expected, Py_EQ) : 0;
            if (equal != 1)
                return equal;
        }
    }
    return 1;
}

/* A tensor that was given becomes a value, if it should be one. */
static int own_given(PyObject *recorder, PyObject *handle)
{
    PyObject *owned = ASKED(PyObject_CallFunctionObjArgs(told.own, recorder, handle, NULL));
    Py_XDECREF(owned);
    return owned == NULL ? -1 : 0;
}

/* What a guard reads, as a new reference; NULL if it is not there, or after a failure. */
static PyObject *read_by(const Guard *guard, PyObject *recorder, PyObject *source, PyObject *const *variables)
{
    PyObject *found = NULL, *dict;
    switch (guard->kind) {
    case READ_GLOBAL:
        found = PyDict_GetItemWithError(PyFunction_GET_GLOBALS(source), guard->name);
        break;
    case READ_BUILTIN:
        if (PyDict_GetItemWithError(PyFunction_GET_GLOBALS(source), guard->name) == NULL && !PyErr_Occurred())
            found = PyDict_GetItemWithError(((PyFunctionObject *)source)->func_builtins, guard->name);
        break;
    case READ_CLOSURE: {
        PyObject *closure = PyFunction_GET_CLOSURE(source);
        if (closure != NULL && guard->number < PyTuple_GET_SIZE(closure))
            found = PyCell_GET(PyTuple_GET_ITEM(closure, guard->number));
        break;
    }
    case READ_DEFAULT: {
        PyObject *defaults = PyFunction_GET_DEFAULTS(source);
        if (defaults != NULL && guard->number < PyTuple_GET_SIZE(defaults))
            found = PyTuple_GET_ITEM(defaults, guard->number);
        break;
    }
    case READ_KEYWORD_DEFAULT:
        dict = PyFunction_GET_KW_DEFAULTS(source);
        found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, guard->name);
        break;
    case READ_ATTRIBUTE:
        dict = attributes_of(source);
        found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, guard->name);
        break;
    case READ_PART:
        dict = attributes_of(source);
        if (dict == NULL || PyDict_GetItemWithError(dict, guard->name) != NULL || PyErr_Occurred() ||
            (PyDict_GET_SIZE(told.guarded) && PyDict_Contains(told.guarded, guard->name)))
            return NULL;
        dict = PyDict_GetItemWithError(dict, guard->other);
        found = dict == NULL || !PyDict_Check(dict) ? NULL : PyDict_GetItemWithError(dict, guard->name);
        break;
    case READ_SLOT:
        found = PyObject_GetAttr(source, guard->name);
        if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear();
        return found;
    case READ_ITEM:
        if ((PyTuple_Check(source) || PyList_Check(source)) && guard->number < PySequence_Fast_GET_SIZE(source))
            found = PySequence_Fast_GET_ITEM(source, guard->number);
        break;
    case READ_ENTRY:
        found = PyDict_Check(source) ? PyDict_GetItemWithError(source, guard->name) : NULL;
        break;
    case READ_LOCAL:
        found = variables == NULL ? NULL : variables[guard->number];
        if (found != NULL && is_given_handle(recorder, found) && own_given(recorder, found) < 0)
            return NULL;
        break;
    case READ_CELL:
        found = variables == NULL ? NULL : variables[guard->number];
        found = found == NULL || !PyCell_Check(found) ? NULL : PyCell_GET(found);
        break;
    case READ_CONSTANT:
        found = referred(guard->name);
        if (found == Py_None && guard->name != Py_None)
            found = NULL;
        break;
    default:
        break;
    }
    return Py_XNewRef(found);
}

static Outcome as_outcome(int holds) { return holds < 0 ? FAILED : holds ? FOUND : UNKNOWN; }

static Outcome check_by(const Guard *guard, PyObject *recorder, PyObject *const *registers)
{
    PyObject *value = registers[guard->source];
    switch (guard->kind) {
    case CHECK_IS:
        return as_outcome(referred(guard->name) == value);
    case CHECK_TYPE:
        return as_outcome((PyObject *)Py_TYPE(value) == referred(guard->name) &&
                          (long)Py_TYPE(value)->tp_version_tag == guard->number &&
                          PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_VALID_VERSION_TAG));
    case CHECK_EQUAL:
        return as_outcome(is_equal(value, guard->name));
    case CHECK_HANDLE:
        return as_outcome(type_of_handle(recorder, value) == guard->name);
    case CHECK_NUMBER:
        return as_outcome((PyObject *)Py_TYPE(value) == guard->name);
    case CHECK_LENGTH:
        return as_outcome((PyObject *)Py_TYPE(value) == referred(guard->name) &&
                          PySequence_Fast_GET_SIZE(value) == guard->number);
    case CHECK_CODE:
        return as_outcome(PyFunction_Check(value) && PyFunction_GET_CODE(value) == referred(guard->name));
    case CHECK_ABSENT: {
        PyObject *dict = attributes_of(value);
        int has = dict == NULL ? 0 : PyDict_Contains(dict, guard->name);
        return has < 0 ? FAILED : as_outcome(!has);
    }
    case CHECK_STATE:
        return module_is_plain(recorder, value);
    case CHECK_UNHOOKED:
        return as_outcome(is_unhooked(value));
    case CHECK_KEYS: {
        int same = has_keys(value, guard->name);
        return as_outcome(same);
    }
    case CHECK_SAME:
        return as_outcome(is_equal(value_of_handle(value), value_of_handle(registers[guard->number])));
    default:
        PyErr_SetString(PyExc_SystemError, "there is no such guard");
        return FAILED;
    }
}

/* Whether all guards hold. Fills registers with new references, up to `filled`. */
static Outcome holds(const Trace *trace, PyObject *recorder, PyObject *const *variables, PyObject **registers, int *filled)
{
    for (Py_ssize_t i = 0; i < trace->guard_count; i++) {
        const Guard *guard = &trace->guards[i];
        if (guard->kind <= READ_CONSTANT) {
            PyObject *found = read_by(guard, recorder, registers[guard->source], variables);
            if (found == NULL)
                return PyErr_Occurred() ? FAILED : UNKNOWN;
            registers[(*filled)++] = found;
        }
        else {
            Outcome outcome = check_by(guard, recorder, registers);
            if (outcome != FOUND)
                return outcome;
        }
    }
    return FOUND;
}

static const char *const part_names[] = {"OUTPUT", "READ", "CONSTANT", "TUPLE", "LIST", "MADE"};

/* What is built by a plan of handles and registers: see `body_builder.py`. */
static PyObject *built(PyObject *plan, PyObject *handles, PyObject *const *registers, int filled)
{
    PyObject *content, *maker = NULL;
    int kind;
    if (!PyArg_ParseTuple(plan, "iO|O", &kind, &content, &maker))
        return NULL;
    if (kind == CONSTANT)
        return Py_NewRef(content);
    if (kind == OUTPUT || kind == READ) {
        long number = PyLong_AsLong(content);
        if (number < 0 || number >= (kind == OUTPUT ? PyTuple_GET_SIZE(handles) : filled)) {
            PyErr_SetString(PyExc_SystemError, "a result is built of what is not there");
            return NULL;
        }
        return Py_NewRef(kind == OUTPUT ? PyTuple_GET_ITEM(handles, number) : registers[number]);
    }
    Py_ssize_t size = PyTuple_GET_SIZE(content);
    PyObject *items = kind == TUPLE ? PyTuple_New(size) : PyList_New(size);
    for (Py_ssize_t i = 0; items != NULL && i < size; i++) {
        PyObject *item = built(PyTuple_GET_ITEM(content, i), handles, registers, filled);
        if (item == NULL)
            Py_CLEAR(items);
        else if (kind == TUPLE)
            PyTuple_SET_ITEM(items, i, item);
        else
            PyList_SET_ITEM(items, i, item);
    }
    if (items != NULL && kind == MADE)
        Py_SETREF(items, ASKED(PyObject_CallOneArg(maker, items)));
    return items;
}

/* Appends to lists what the call appends. */
static int append(PyObject *appends, PyObject *handles, PyObject *const *registers, int filled)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(appends); i++) {
        int number;
        PyObject *plan;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(appends, i), "iO!", &number, &PyTuple_Type, &plan))
            return -1;
        if (number < 0 || number >= filled) {
            PyErr_SetString(PyExc_SystemError, "something is appended to what is not there");
            return -1;
        }
        PyObject *item = built(plan, handles, registers, filled);
        int failed = item == NULL || PyList_Append(registers[number], item) < 0;
        Py_XDECREF(item);
        if (failed)
            return -1;
    }
    return 0;
}

/* The result of a call as one node, if the guards of the trace hold: whether they do is said apart, because a call that somebody may
   catch the errors of is left to Python all the same. */
Outcome replay(Trace *trace, PyObject *recorder, PyObject *const *given, PyObject *const *variables, PyObject **result,
               int *is_held)
{
    PyObject *registers[MOST_REGISTERS], *operands[MOST_REGISTERS], *handles = NULL;
    int filled = 0;
    for (; filled < trace->first_free; filled++) {
        if (given[filled] == NULL) {
            while (filled)
                Py_DECREF(registers[--filled]);
            return UNKNOWN;
        }
        registers[filled] = Py_NewRef(given[filled]);
    }
    Outcome outcome = holds(trace, recorder, variables, registers, &filled);
    *is_held = outcome == FOUND;
    if (outcome == FOUND) {
        for (Py_ssize_t i = 0; i < trace->operand_count; i++)
            operands[i] = registers[trace->operands[i]];
        outcome = record_automatic(recorder, (PyObject *)trace, operands, trace->operand_count, &handles);
        if (outcome == UNKNOWN) { /* new to this recorder, or to this flush of it */
            PyObject *admitted = ASKED(PyObject_CallFunctionObjArgs(told.admit, (PyObject *)trace, recorder, NULL));
            outcome = admitted == NULL ? FAILED : admitted == Py_True ? FOUND : UNKNOWN;
            *is_held = outcome == FOUND;
            Py_XDECREF(admitted);
            if (outcome == FOUND)
                outcome = record_automatic(recorder, (PyObject *)trace, operands, trace->operand_count, &handles);
        }
    }
    if (outcome == FOUND && append(trace->appends, handles, registers, filled) < 0) {
        Py_CLEAR(handles);
        outcome = FAILED;
    }
    if (outcome == FOUND && trace->rebuild != Py_None) {
        Py_SETREF(handles, built(trace->rebuild, handles, registers, filled));
        outcome = handles == NULL ? FAILED : FOUND;
    }
    while (filled)
        Py_DECREF(registers[--filled]);
    *result = handles;
    trace->calls += outcome == FOUND;
    return outcome;
}

/* ---- What is known of a function, kept with its code. */

#if KNOWS_FRAMES

static Py_ssize_t extra_index = -1;
static _PyFrameEvalFunction around; /* what ran frames before */

static void forget_traces(Known *known)
{
    while (known->trace_count)
        Py_DECREF(known->traces[--known->trace_count]);
}

static void free_known(void *extra)
{
    Known *known = extra;
    if (known != NULL) {
        forget_traces(known);
        Py_XDECREF(known->function);
        Py_XDECREF(known->names);
        Py_XDECREF(known->divided);
        PyMem_Free(known);
    }
}

Known *known_of(PyObject *code)
{
    void *extra = NULL;
    if (_PyCode_GetExtra(code, extra_index, &extra) < 0)
        return NULL;
    if (extra == NULL) {
        extra = PyMem_Calloc(1, sizeof(Known));
        if (extra == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (_PyCode_SetExtra(code, extra_index, extra) < 0) {
            PyMem_Free(extra);
            return NULL;
        }
    }
    return extra;
}

static Outcome capture(_PyInterpreterFrame *frame, PyObject **result)
{
    Py_ssize_t count = frame->f_code->co_argcount + frame->f_code->co_kwonlyargcount;
    PyObject *given = PyTuple_New(count);
    for (Py_ssize_t i = 0; given != NULL && i < count; i++) {
        if (frame->localsplus[i] == NULL) {
            Py_DECREF(given);
            return UNKNOWN;
        }
        PyTuple_SET_ITEM(given, i, Py_NewRef(frame->localsplus[i]));
    }
    if (given == NULL)
        return FAILED;
    PyObject *captured = ASKED(PyObject_CallFunctionObjArgs(told.capture, (PyObject *)frame->f_func, given, NULL));
    Py_DECREF(given);
    if (captured == NULL)
        return FAILED;
    if (captured == Py_None) {
        Py_DECREF(captured);
        return UNKNOWN;
    }
    *result = Py_NewRef(PyTuple_GET_ITEM(captured, 0));
    Py_DECREF(captured);
    return FOUND;
}

/* Which variables of one of torch's functions it reports, by position and by name: (function, positions, names, named positions). */
static int take_form(Known *known, PyObject *form)
{
    PyObject *function, *positions, *names, *named;
    if (!PyArg_ParseTuple(form, "OO!O!O!", &function, &PyTuple_Type, &positions, &PyTuple_Type, &names, &PyTuple_Type, &named))
        return -1;
    if (PyTuple_GET_SIZE(positions) > MOST_ARGUMENTS || PyTuple_GET_SIZE(named) > MOST_ARGUMENTS ||
        PyTuple_GET_SIZE(named) != PyTuple_GET_SIZE(names)) {
        known->is_refused = 1;
        return 0;
    }
    known->position_count = (int)PyTuple_GET_SIZE(positions);
    for (int i = 0; i < known->position_count; i++)
        known->positions[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(positions, i));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(named); i++)
        known->named_positions[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(named, i));
    known->names = Py_NewRef(names);
    known->function = Py_NewRef(function);
    return PyErr_Occurred() ? -1 : 0;
}

/* Ask about a function that was not seen before. */
static int take_note(Known *known, PyCodeObject *code)
{
    PyObject *answer = ASKED(PyObject_CallOneArg(told.follows, (PyObject *)code));
    if (answer == NULL)
        return -1;
    known->calls = 1;
    known->is_refused = answer == Py_False || answer == Py_None;
    known->is_divisible = answer == Py_None || answer == Py_True;
    int failed = PyTuple_Check(answer) ? take_form(known, answer) : 0;
    Py_DECREF(answer);
    return failed;
}

static Outcome function_as_node(_PyInterpreterFrame *frame, Known *known, PyObject *recorder, PyObject **result)
{
    PyObject *args[MOST_ARGUMENTS], *named[MOST_ARGUMENTS];
    int count = frame->f_code->co_argcount + frame->f_code->co_kwonlyargcount;
    Py_ssize_t named_count = PyTuple_GET_SIZE(known->names);
    for (int i = 0; i < known->position_count; i++)
        args[i] = known->positions[i] < count ? frame->localsplus[known->positions[i]] : NULL;
    for (Py_ssize_t i = 0; i < named_count; i++)
        named[i] = known->named_positions[i] < count ? frame->localsplus[known->named_positions[i]] : NULL;
    for (int i = 0; i < known->position_count; i++)
        if (args[i] == NULL)
            return UNKNOWN;
    for (Py_ssize_t i = 0; i < named_count; i++)
        if (named[i] == NULL)
            return UNKNOWN;
    return record_function(recorder, known->function, args, known->position_count, known->names, named, result);
}

/* By one of the traces that are known. */
static Outcome by_trace(Known *known, PyObject *recorder, PyObject *const *given, PyObject **result, int *is_held)
{
    for (int i = 0; i < known->trace_count; i++) {
        Trace *trace = (Trace *)Py_NewRef(known->traces[i]);
        Outcome outcome = replay(trace, recorder, given, NULL, result, is_held);
        if (*is_held) {
            known->hits++;
            if (i && i < known->trace_count && known->traces[i] == (PyObject *)trace) { /* what is used often is found soon */
                known->traces[i] = known->traces[i - 1];
                known->traces[i - 1] = (PyObject *)trace;
            }
        }
        Py_DECREF(trace);
        if (outcome != UNKNOWN || *is_held)
            return outcome;
    }
    return UNKNOWN;
}

static int is_module(PyObject *object)
{
    PyObject *attributes = object == NULL ? NULL : attributes_of(object);
    return attributes != NULL && PyDict_GetItem(attributes, name_parts) != NULL;
}

/* A call of a module: one of torch's is recorded; for one of the user's there may be a trace of its `forward`. */
static Outcome module_as_node(_PyInterpreterFrame *frame, PyObject *recorder, PyObject **result)
{
    PyObject *module = frame->localsplus[0], *args = frame->localsplus[1], *kwargs = frame->localsplus[2];
    if (module == NULL || args == NULL || kwargs == NULL || PyDict_GET_SIZE(kwargs))
        return UNKNOWN;
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    Outcome outcome = record_module(recorder, module, ((PyTupleObject *)args)->ob_item, count, result);
    if (outcome != UNKNOWN)
        return outcome;
    PyObject *forward = _PyType_Lookup(Py_TYPE(module), name_forward);
    if (forward == NULL || !PyFunction_Check(forward) || count + 2 >= MOST_REGISTERS)
        return UNKNOWN;
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(forward);
    void *extra = NULL;
    if (_PyCode_GetExtra((PyObject *)code, extra_index, &extra) < 0)
        return FAILED;
    Known *known = extra;
    if (known == NULL || !known->trace_count || known->is_refused || code->co_argcount != count + 1 || code->co_kwonlyargcount ||
        !is_unhooked(module))
        return UNKNOWN;
    PyObject *given[MOST_REGISTERS];
    given[0] = module;
    for (Py_ssize_t i = 0; i < count; i++)
        given[i + 1] = PyTuple_GET_ITEM(args, i);
    given[count + 1] = forward;
    int is_held = 0;
    return by_trace(known, recorder, given, result, &is_held);
}

/* A part or a parameter of a module. Anything else, and whatever examples write, Python looks for. */
static Outcome attribute_of_module(_PyInterpreterFrame *frame, PyObject **result)
{
    PyObject *module = frame->localsplus[0], *name = frame->localsplus[1];
    PyObject *attributes = module == NULL || name == NULL ? NULL : attributes_of(module);
    if (attributes == NULL || !PyUnicode_CheckExact(name) || PyDict_GET_SIZE(told.guarded))
        return UNKNOWN;
    PyObject *parameters = PyDict_GetItem(attributes, name_parameters), *parts = PyDict_GetItem(attributes, name_parts);
    if (parameters == NULL || parts == NULL || !PyDict_CheckExact(parameters) || !PyDict_CheckExact(parts))
        return UNKNOWN;
    PyObject *buffers = PyDict_GetItem(attributes, name_buffers);
    PyObject *found = PyDict_GetItem(parameters, name);
    if (found != NULL && (PyObject *)Py_TYPE(found) != told.parameter_type)
        return UNKNOWN;
    if (found == NULL && (buffers == NULL || !PyDict_CheckExact(buffers) || PyDict_GetItem(buffers, name) == NULL))
        found = PyDict_GetItem(parts, name);
    *result = Py_XNewRef(found);
    return found == NULL ? UNKNOWN : FOUND;
}

static Outcome as_one_node(_PyInterpreterFrame *frame, Known *known, PyObject **result)
{
    if ((PyObject *)frame->f_code == told.module_getattr)
        return attribute_of_module(frame, result);
    PyObject *recorder = current_recorder();
    if (recorder == NULL)
        return PyErr_Occurred() ? FAILED : UNKNOWN;
    if ((PyObject *)frame->f_code == told.module_call)
        return module_as_node(frame, recorder, result);
    if (!known->calls && take_note(known, frame->f_code) < 0)
        return FAILED;
    if (known->is_refused)
        return UNKNOWN;
    if (known->function != NULL)
        return function_as_node(frame, known, recorder, result);
    if (known->calls < enough_calls) {
        known->calls++;
        return UNKNOWN;
    }
    PyObject *given[MOST_REGISTERS];
    int count = frame->f_code->co_argcount + frame->f_code->co_kwonlyargcount;
    if (count + 1 >= MOST_REGISTERS)
        return UNKNOWN;
    for (int i = 0; i < count; i++) {
        given[i] = frame->localsplus[i];
        if (given[i] != NULL && is_given_handle(recorder, given[i]) && own_given(recorder, given[i]) < 0)
            return FAILED;
    }
    given[count] = (PyObject *)frame->f_func;
    int is_held = 0;
    Outcome outcome = by_trace(known, recorder, given, result, &is_held);
    if (outcome != UNKNOWN || is_held)
        return outcome;
    /* A function whose calls differ from each other is better recorded operation by operation: these can share steps. */
    int few = count && is_module(given[0]) ? MOST_TRACES : FEW_TRACES;
    if (++known->misses > few && known->hits < 4 * known->misses) {
        forget_traces(known);
        known->is_refused = 1;
        return UNKNOWN;
    }
    return capture(frame, result);
}

/* A function that is no cell as a whole runs by the code that was divided into segments, if there is one and nobody else looks at code. */
static int run_divided(_PyInterpreterFrame *frame, Known *known)
{
    if (around != _PyEval_EvalFrameDefault || current_recorder() == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (known->refused_calls < enough_calls) {
        known->refused_calls++;
        return 0;
    }
    if (known->divided == NULL) {
        PyObject *answer = ASKED(PyObject_CallOneArg(told.divide, (PyObject *)frame->f_code));
        if (answer == NULL)
            return -1;
        known->is_divisible = known->divided != NULL;
        Py_DECREF(answer);
    }
    PyCodeObject *divided = (PyCodeObject *)known->divided;
    if (divided != NULL) {
        Py_SETREF(frame->f_code, (PyCodeObject *)Py_NewRef(divided));
        frame->prev_instr = _PyCode_CODE(divided) - 1;
    }
    return 0;
}

static int batches;                             /* under way, in all threads */
static __thread _PyInterpreterFrame *passed_on; /* which others may pass back */
static __thread char *stack_base;               /* where the stack of this thread was when a batch began */

static PyObject *evaluate(PyThreadState *state, _PyInterpreterFrame *frame, int is_throwing)
{
    char here;
    if (frame == passed_on)
        return _PyEval_EvalFrameDefault(state, frame, is_throwing);
    /* With a hook, each call of a Python function takes stack of C's, of which there is not much. Deep recursions do without. */
    if (stack_base != NULL && stack_base - &here > MOST_STACK && _PyInterpreterState_GetEvalFrameFunc(state->interp) == evaluate)
        _PyInterpreterState_SetEvalFrameFunc(state->interp, around);
    if (!batches &&
        _PyInterpreterState_GetEvalFrameFunc(state->interp) == evaluate) /* somebody put it back after the last batch */
        _PyInterpreterState_SetEvalFrameFunc(state->interp, _PyEval_EvalFrameDefault);
    void *extra = NULL;
    PyObject *result = NULL;
    if (!is_throwing && !is_asking && !state->cframe->use_tracing && frame->f_func != NULL &&
        (frame->f_code->co_flags & (CO_OPTIMIZED | CO_NEWLOCALS)) == (CO_OPTIMIZED | CO_NEWLOCALS)) {
        if (_PyCode_GetExtra((PyObject *)frame->f_code, extra_index, &extra) < 0)
            return NULL;
        Known *known = extra;
        if (known != NULL && known->is_refused && known->is_divisible && run_divided(frame, known) < 0)
            return NULL;
        if (known == NULL || !known->is_refused) {
            known = known_of((PyObject *)frame->f_code);
            Outcome outcome = known == NULL ? FAILED : as_one_node(frame, known, &result);
            if (outcome != UNKNOWN)
                return result;
        }
    }
    if (around == _PyEval_EvalFrameDefault)
        return _PyEval_EvalFrameDefault(state, frame, is_throwing);
    _PyInterpreterFrame *before = passed_on;
    passed_on = frame;
    result = around(state, frame, is_throwing);
    passed_on = before;
    return result;
}

#endif

/* Automatic cells from now on, until `leave` was called as often. */
static PyObject *enter(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
#if KNOWS_FRAMES
    char here;
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    stack_base = &here;
    if (!batches++ && _PyInterpreterState_GetEvalFrameFunc(interpreter) != evaluate) {
        around = _PyInterpreterState_GetEvalFrameFunc(interpreter);
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
    }
#endif
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
#if KNOWS_FRAMES
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    /* Whoever came after stays, and calls what it found. */
    if (!--batches && _PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate)
        _PyInterpreterState_SetEvalFrameFunc(interpreter, around);
#endif
    Py_RETURN_NONE;
}

/* Keep a trace with the code of its function. False if there are too many. */
static PyObject *add_trace(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *code, *trace;
    if (!PyArg_ParseTuple(args, "O!O!", &PyCode_Type, &code, &TraceType, &trace))
        return NULL;
#if KNOWS_FRAMES
    Known *known = known_of(code);
    if (known == NULL)
        return NULL;
    if (known->trace_count < MOST_TRACES) {
        known->traces[known->trace_count++] = Py_NewRef(trace);
        Py_RETURN_TRUE;
    }
    /* The oldest makes room: its model may be gone. */
    PyObject *oldest = known->traces[0];
    memmove(known->traces, known->traces + 1, (MOST_TRACES - 1) * sizeof(PyObject *));
    known->traces[MOST_TRACES - 1] = Py_NewRef(trace);
    Py_DECREF(oldest);
#endif
    Py_RETURN_FALSE;
}

/* Never capture this code. */
static PyObject *refuse(PyObject *module, PyObject *code)
{
    (void)module;
    if (!PyCode_Check(code))
        return PyErr_Format(PyExc_TypeError, "a code object is refused, not a %s", Py_TYPE(code)->tp_name);
#if KNOWS_FRAMES
    Known *known = known_of(code);
    if (known == NULL)
        return NULL;
    known->calls = 1;
    known->is_refused = known->is_divisible = 1;
    forget_traces(known);
#endif
    Py_RETURN_NONE;
}

/* Run a function by a code of its own from now on, which differs by its shortcuts alone; by its own again without one. */
static PyObject *divide(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *code, *divided = NULL;
    if (!PyArg_ParseTuple(args, "O!|O!", &PyCode_Type, &code, &PyCode_Type, &divided))
        return NULL;
#if KNOWS_FRAMES
    Known *known = known_of(code), *of_divided = divided == NULL ? NULL : known_of(divided);
    if (known == NULL || (divided != NULL && of_divided == NULL))
        return NULL;
    const PyCodeObject *old = (PyCodeObject *)code, *new = (PyCodeObject *)divided;
    if (divided != NULL && (old->co_nlocalsplus != new->co_nlocalsplus || old->co_stacksize != new->co_stacksize ||
                            old->co_flags != new->co_flags)) {
        PyErr_SetString(PyExc_ValueError, "a divided function has the variables and the stack of the function");
        return NULL;
    }
    if (divided != NULL)
        of_divided->divides = code;
    known->is_divisible = divided != NULL;
    Py_XSETREF(known->divided, Py_XNewRef(divided));
#endif
    Py_RETURN_NONE;
}

/* The traces of some code. */
static PyObject *traces_of(PyObject *module, PyObject *code)
{
    (void)module;
    PyObject *list = PyList_New(0);
#if KNOWS_FRAMES
    Known *known = list == NULL || !PyCode_Check(code) ? NULL : known_of(code);
    for (int i = 0; known != NULL && i < known->trace_count; i++)
        if (PyList_Append(list, known->traces[i]) < 0)
            Py_CLEAR(list);
#else
    (void)code;
#endif
    return list;
}

/* Capture functions from this call of them on; tests want it to be the first. The number that it was before. */
static PyObject *capture_from(PyObject *module, PyObject *calls)
{
    (void)module;
    long before = enough_calls, wanted = PyLong_AsLong(calls);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    enough_calls = (int)wanted;
    return PyLong_FromLong(before);
}

/* Which of a type's versions this is, 0 if it has none now. */
static PyObject *version_of(PyObject *module, PyObject *type)
{
    (void)module;
    if (!PyType_Check(type))
        return PyErr_Format(PyExc_TypeError, "the version of a type is wanted, not of a %s", Py_TYPE(type)->tp_name);
    int is_valid = PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_VALID_VERSION_TAG);
    return PyLong_FromUnsignedLong(is_valid ? ((PyTypeObject *)type)->tp_version_tag : 0);
}

static PyObject *bind_automatic(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *follows, *divided, *module_call, *module_getattr, *parameter_type, *capture, *admit, *own, *guarded, *hooks;
    if (!PyArg_ParseTuple(args, "OOOOOOOOO!O!", &follows, &divided, &module_call, &module_getattr, &parameter_type, &capture,
                          &admit, &own, &PyDict_Type, &guarded, &PyTuple_Type, &hooks))
        return NULL;
    Py_XSETREF(told.follows, Py_NewRef(follows)); /* all for as long as the process lives */
    Py_XSETREF(told.divide, Py_NewRef(divided));
    Py_XSETREF(told.module_call, Py_NewRef(module_call));
    Py_XSETREF(told.module_getattr, Py_NewRef(module_getattr));
    Py_XSETREF(told.parameter_type, Py_NewRef(parameter_type));
    Py_XSETREF(told.capture, Py_NewRef(capture));
    Py_XSETREF(told.admit, Py_NewRef(admit));
    Py_XSETREF(told.own, Py_NewRef(own));
    Py_XSETREF(told.guarded, Py_NewRef(guarded));
    Py_XSETREF(told.global_hooks, Py_NewRef(hooks));
    return PyBool_FromLong(KNOWS_FRAMES);
}

PyMethodDef automatic_functions[] = {
    {"bind_automatic", bind_automatic, METH_VARARGS,
     "Say who captures and admits. Whether there are automatic cells in this Python."},
    {"trace", new_trace, METH_VARARGS,
     "A trace of guards, operands, the first free register, how the result is built and what is appended."},
    {"enter", enter, METH_NOARGS, "Automatic cells from now on."},
    {"leave", leave, METH_NOARGS, "No longer, after as many calls as of enter."},
    {"add_trace", add_trace, METH_VARARGS, "Keep a trace with the code of its function."},
    {"refuse", refuse, METH_O, "Never capture this code."},
    {"capture_from", capture_from, METH_O, "Capture functions from this call of them on."},
    {"divide", divide, METH_VARARGS, "Run a function by a code of its own from now on."},
    {"traces_of", traces_of, METH_O, "The traces of some code."},
    {"version_of", version_of, METH_O, "Which of a type's versions this is."},
    {NULL},
};

int ready_automatic(PyObject *module)
{
    static const char *const hooks[] = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"};
    for (int i = 0; i < 4; i++)
        if ((name_modules_hooks[i] = PyUnicode_InternFromString(hooks[i])) == NULL)
            return -1;
    struct {
        PyObject **place;
        const char *text;
    } names[] = {
        {&name_forward, "forward"},        {&name_compiled, "_compiled_call_impl"},
        {&name_parameters, "_parameters"}, {&name_buffers, "_buffers"},
        {&name_parts, "_modules"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    if (PyType_Ready(&TraceType) < 0)
        return -1;
    for (int i = 0; i <= MADE; i++)
        if (PyModule_AddIntConstant(module, part_names[i], i) < 0)
            return -1;
    for (int i = 0; i < GUARD_KINDS; i++)
        if (PyModule_AddIntConstant(module, guard_names[i], i) < 0)
            return -1;
#if KNOWS_FRAMES
    extra_index = _PyEval_RequestCodeExtraIndex(free_known);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_SystemError, "code objects have no room for what is known of them");
        return -1;
    }
#endif
    return ready_segments(module) < 0 ? -1 : PyModule_AddFunctions(module, automatic_functions);
}
