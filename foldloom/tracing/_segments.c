/* Shortcuts: segments of functions that are recorded as one node, without running their Python.

   A function that is no automatic cell as a whole runs by another code, in which a call of a shortcut stands before each segment (see
   `automatic/rewriting.py`). A shortcut looks at the variables of the frame that calls it. If the guards of one of its traces hold, it records the
   node, writes the variables that the segment assigns, and says so: the code then jumps to where the segment ends. Otherwise Python runs the
   segment as ever.

   A shortcut without an end is a *learner*: asked often enough, it has the segment that begins there captured. */

#include "_automatic.h"

#include <stddef.h>

typedef struct {
    PyObject_HEAD PyObject *weak, *attributes;
    PyObject *code; /* the function's own, only to be compared */
    int variables;  /* that the function has */
    int values;     /* on the stack where the segment ends */
    int is_learner;
    int patience; /* calls that are left to Python before the next capture */
    unsigned long misses, hits;
    int trace_count;
    PyObject *traces[MOST_TRACES];  /* owned */
    PyObject *targets[MOST_TRACES]; /* owned: tuples of the numbers of variables, of those to write and of those to forget */
} Shortcut;

static PyObject *learn; /* asked to capture the segment of a learner */

static int shortcut_traverse(PyObject *self, visitproc visit, void *arg)
{
    Shortcut *shortcut = (Shortcut *)self;
    for (int i = 0; i < shortcut->trace_count; i++)
        Py_VISIT(shortcut->traces[i]);
    Py_VISIT(shortcut->attributes);
    return 0;
}

static int shortcut_clear(PyObject *self)
{
    Shortcut *shortcut = (Shortcut *)self;
    while (shortcut->trace_count) {
        int last = --shortcut->trace_count;
        Py_CLEAR(shortcut->targets[last]);
        Py_CLEAR(shortcut->traces[last]);
    }
    Py_CLEAR(shortcut->attributes);
    return 0;
}

static void shortcut_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    shortcut_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* shortcut(code, values): `values` are on the stack where its segment ends; -1 for a learner. */
static PyObject *shortcut_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *code;
    int values;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!i", &PyCode_Type, &code, &values))
        return NULL;
    Shortcut *shortcut = (Shortcut *)type->tp_alloc(type, 0);
    if (shortcut == NULL)
        return NULL;
    shortcut->code = code;
    shortcut->variables = ((PyCodeObject *)code)->co_nlocalsplus;
    shortcut->values = values < 0 ? 0 : values;
    shortcut->is_learner = values < 0;
    return (PyObject *)shortcut;
}

#if KNOWS_FRAMES

/* The frame that calls, if it runs the code that this shortcut was made for, and nobody looks on. */
static _PyInterpreterFrame *calling_frame(const Shortcut *shortcut)
{
    PyThreadState *state = PyThreadState_Get();
    _PyInterpreterFrame *frame = state->cframe->current_frame;
    if (frame == NULL || state->cframe->use_tracing || frame->owner != FRAME_OWNED_BY_THREAD)
        return NULL;
    Known *known = known_of((PyObject *)frame->f_code);
    return known != NULL && known->divides == shortcut->code ? frame : NULL;
}

/* Writes what the segment assigned. The values on the stack where it ends are given back: one, a tuple of several, or True. */
static PyObject *written(const Shortcut *shortcut, PyObject *targets, _PyInterpreterFrame *frame, PyObject *values)
{
    PyObject *kept = PyTuple_GET_ITEM(targets, 0), *forgotten = PyTuple_GET_ITEM(targets, 1);
    Py_ssize_t size = PyTuple_GET_SIZE(kept), gone = PyTuple_GET_SIZE(forgotten);
    PyObject *result;
    if (shortcut->values == 0)
        result = Py_NewRef(Py_True);
    else if (shortcut->values == 1)
        result = Py_NewRef(PyTuple_GET_ITEM(values, size));
    else
        result = PyTuple_GetSlice(values, size, size + shortcut->values);
    PyObject *old = result == NULL ? NULL : PyTuple_New(size + gone); /* they die when all is written: their ends may run code */
    if (old == NULL) {
        Py_XDECREF(result);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size + gone; i++) {
        PyObject *number = i < size ? PyTuple_GET_ITEM(kept, i) : PyTuple_GET_ITEM(forgotten, i - size);
        PyObject **variable = &frame->localsplus[PyLong_AsLong(number)];
        PyTuple_SET_ITEM(old, i, *variable);
        *variable = i < size ? Py_NewRef(PyTuple_GET_ITEM(values, i)) : NULL;
    }
    Py_DECREF(old);
    return result;
}

/* The variables of a frame that have a value, by number. */
static PyObject *variables_of(_PyInterpreterFrame *frame)
{
    PyObject *variables = PyDict_New(), *kinds = frame->f_code->co_localspluskinds;
    for (int i = 0; variables != NULL && i < frame->f_code->co_nlocalsplus; i++) {
        PyObject *value = frame->localsplus[i];
        if (value != NULL && PyBytes_AS_STRING(kinds)[i] & (CO_FAST_CELL | CO_FAST_FREE))
            value = PyCell_Check(value) ? PyCell_GET(value) : NULL;
        if (value == NULL)
            continue;
        PyObject *number = PyLong_FromLong(i);
        if (number == NULL || PyDict_SetItem(variables, number, value) < 0)
            Py_CLEAR(variables);
        Py_XDECREF(number);
    }
    return variables;
}

/* Has the segment captured that begins here. */
static int learnt(Shortcut *shortcut, _PyInterpreterFrame *frame)
{
    Known *known = known_of(PyFunction_GET_CODE(frame->f_func));
    if (known == NULL)
        return -1;
    if (known->divided != (PyObject *)frame->f_code) /* the frame began before the code was made anew */
        return 0;
    shortcut->misses++;
    if (shortcut->patience-- > 0)
        return 0;
    PyObject *variables = variables_of(frame);
    PyObject *answer =
        variables == NULL
            ? NULL
            : ASKED(PyObject_CallFunctionObjArgs(learn, (PyObject *)shortcut, (PyObject *)frame->f_func, variables, NULL));
    Py_XDECREF(variables);
    if (answer == NULL)
        return -1;
    shortcut->patience = (int)PyLong_AsLong(answer);
    Py_DECREF(answer);
    return PyErr_Occurred() ? -1 : 0;
}

/* As `by_trace` of `_automatic.c`. */
static Outcome by_shortcut(Shortcut *shortcut, PyObject *recorder, _PyInterpreterFrame *frame, PyObject **result)
{
    PyObject *given[1] = {(PyObject *)frame->f_func};
    for (int i = 0; i < shortcut->trace_count; i++) {
        Trace *trace = (Trace *)Py_NewRef(shortcut->traces[i]);
        PyObject *targets = Py_NewRef(shortcut->targets[i]), *values = NULL;
        int is_held = 0;
        Outcome outcome = replay(trace, recorder, given, frame->localsplus, &values, &is_held);
        if (outcome == FOUND) {
            *result = written(shortcut, targets, frame, values);
            Py_DECREF(values);
            outcome = *result == NULL ? FAILED : FOUND;
        }
        if (is_held && i && i < shortcut->trace_count && shortcut->traces[i] == (PyObject *)trace) {
            PyObject *before = shortcut->traces[i - 1], *targets_before = shortcut->targets[i - 1];
            shortcut->traces[i - 1] = shortcut->traces[i];
            shortcut->targets[i - 1] = shortcut->targets[i];
            shortcut->traces[i] = before;
            shortcut->targets[i] = targets_before;
        }
        Py_DECREF(targets);
        Py_DECREF(trace);
        if (outcome != UNKNOWN || is_held) {
            shortcut->hits += outcome == FOUND;
            return outcome;
        }
    }
    shortcut->misses++;
    return UNKNOWN;
}

#endif

static PyObject *shortcut_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    Shortcut *shortcut = (Shortcut *)self;
    PyObject *result = NULL;
    (void)args;
    (void)kwargs;
#if KNOWS_FRAMES
    _PyInterpreterFrame *frame = is_asking ? NULL : calling_frame(shortcut);
    PyObject *recorder = frame == NULL ? NULL : current_recorder();
    if (PyErr_Occurred())
        return NULL;
    if (recorder != NULL && shortcut->is_learner) {
        if (learnt(shortcut, frame) < 0)
            return NULL;
    }
    else if (recorder != NULL && by_shortcut(shortcut, recorder, frame, &result) == FAILED)
        return NULL;
#endif
    if (result != NULL)
        return result;
    return Py_NewRef(shortcut->values == 0 ? Py_False : Py_None);
}

/* add(trace, written, forgotten): variables that the segment assigns by this trace, by their numbers. */
static PyObject *shortcut_add(PyObject *self, PyObject *args)
{
    Shortcut *shortcut = (Shortcut *)self;
    PyObject *trace, *kept, *forgotten;
    if (!PyArg_ParseTuple(args, "O!O!O!", &TraceType, &trace, &PyTuple_Type, &kept, &PyTuple_Type, &forgotten))
        return NULL;
    PyObject *const *both[2] = {((PyTupleObject *)kept)->ob_item, ((PyTupleObject *)forgotten)->ob_item};
    for (int which = 0; which < 2; which++)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(which ? forgotten : kept); i++) {
            long number = PyLong_AsLong(both[which][i]);
            if (number < 0 || number >= shortcut->variables) {
                PyErr_SetString(PyExc_ValueError, "a segment assigns a variable that is not there");
                return NULL;
            }
        }
    PyObject *targets = PyTuple_Pack(2, kept, forgotten);
    if (targets == NULL)
        return NULL;
    if (shortcut->trace_count == MOST_TRACES) { /* the oldest makes room: its model may be gone */
        PyObject *oldest = shortcut->traces[0], *of_oldest = shortcut->targets[0];
        shortcut->trace_count--;
        memmove(shortcut->traces, shortcut->traces + 1, (MOST_TRACES - 1) * sizeof(PyObject *));
        memmove(shortcut->targets, shortcut->targets + 1, (MOST_TRACES - 1) * sizeof(PyObject *));
        Py_DECREF(of_oldest);
        Py_DECREF(oldest);
    }
    shortcut->targets[shortcut->trace_count] = targets;
    shortcut->traces[shortcut->trace_count++] = Py_NewRef(trace);
    Py_RETURN_NONE;
}

static PyObject *shortcut_traces(PyObject *self, void *unused)
{
    (void)unused;
    Shortcut *shortcut = (Shortcut *)self;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < shortcut->trace_count; i++)
        if (PyList_Append(list, shortcut->traces[i]) < 0)
            Py_CLEAR(list);
    return list;
}

static PyObject *shortcut_hits(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((Shortcut *)self)->hits);
}

static PyObject *shortcut_misses(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((Shortcut *)self)->misses);
}

static PyMethodDef shortcut_methods[] = {
    {"add", shortcut_add, METH_VARARGS, "One more trace, with the variables to write and to forget."},
    {NULL},
};

static PyGetSetDef shortcut_getset[] = {
    {"traces", shortcut_traces, NULL, "The ways of the segment that are known.", NULL},
    {"hits", shortcut_hits, NULL, "How often the segment was recorded as one node.", NULL},
    {"misses", shortcut_misses, NULL, "How often no trace was right.", NULL},
    {NULL},
};

static PyTypeObject ShortcutType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "foldloom.tracing._fast_path.Shortcut",
    .tp_doc = "Stands before a segment of a function, which it records as one node.",
    .tp_basicsize = sizeof(Shortcut),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = shortcut_new,
    .tp_call = shortcut_call,
    .tp_traverse = shortcut_traverse,
    .tp_clear = shortcut_clear,
    .tp_dealloc = shortcut_dealloc,
    .tp_weaklistoffset = offsetof(Shortcut, weak),
    .tp_dictoffset = offsetof(Shortcut, attributes),
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_methods = shortcut_methods,
    .tp_getset = shortcut_getset,
};

static PyObject *bind_segments(PyObject *module, PyObject *learns)
{
    (void)module;
    Py_XSETREF(learn, Py_NewRef(learns)); /* for as long as the process lives */
    Py_RETURN_NONE;
}

PyMethodDef segment_functions[] = {
    {"bind_segments", bind_segments, METH_O, "Say who captures segments."},
    {NULL},
};

int ready_segments(PyObject *module)
{
    if (PyType_Ready(&ShortcutType) < 0 || PyModule_AddObjectRef(module, "Shortcut", (PyObject *)&ShortcutType) < 0)
        return -1;
    return PyModule_AddFunctions(module, segment_functions);
}
