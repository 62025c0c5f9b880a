/* What `_segments.c` uses of `_automatic.c`: both are one extension module. */

#include "_fast_path.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#define KNOWS_FRAMES 1
#define Py_BUILD_CORE_MODULE 1
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
#else
#define KNOWS_FRAMES 0 /* other versions of Python have other frames: there are no automatic cells */
#endif

#define MOST_ARGUMENTS 16 /* of torch's functions */
#define MOST_TRACES 32    /* of one function: a module has one for each object of its class */

typedef struct Guard Guard;

typedef struct {
    PyObject_HEAD PyObject *weak, *attributes;
    Py_ssize_t guard_count;
    Guard *guards;
    Py_ssize_t operand_count;
    int *operands;     /* registers */
    int first_free;    /* register: the arguments and the function are before it */
    PyObject *rebuild; /* how the result is built of handles and registers; None if the handles are the result */
    PyObject *appends; /* a tuple of what is appended to lists: the register of each, and how the item is built */
    unsigned long calls;
} Trace;

extern PyTypeObject TraceType;

/* Of what a result is built. */
typedef enum { OUTPUT, READ, CONSTANT, TUPLE, LIST, MADE } Part;

/* What is known of a function, kept with its code. */
typedef struct {
    PyObject *function; /* one of torch's, owned, or NULL */
    PyObject *names;    /* of the arguments that it reports by name, owned */
    int positions[MOST_ARGUMENTS], position_count,
        named_positions[MOST_ARGUMENTS]; /* which variables the reported arguments are */
    int calls;                           /* while nothing was captured */
    int is_refused;                      /* never to be captured */
    int misses;                          /* calls that no trace was right for */
    int hits;                            /* calls that one was right for */
    int trace_count;
    PyObject *traces[MOST_TRACES]; /* owned */
    int is_divisible;              /* whether it may have segments, if it is refused */
    int refused_calls;
    PyObject *divided; /* the code with shortcuts that runs in its place, owned, or NULL */
    PyObject *divides; /* of such a code: the function's own, only to be compared */
} Known;

/* NULL after a failure. */
Known *known_of(PyObject *code);

/* The result of a call as one node, if the guards of the trace hold: whether they do is said apart, because a call that somebody may
   catch the errors of is left to Python all the same. `variables` are those of a frame, for a segment of its function. */
Outcome replay(Trace *trace, PyObject *recorder, PyObject *const *given, PyObject *const *variables, PyObject **result,
               int *is_held);

/* Takes over the answer of Python's, which is asked by `asked(...)`. */
#define ASKED(call) (is_asking++, asked(call))
extern __thread int is_asking;
PyObject *asked(PyObject *answer);

/* Adds to the functions of the module. */
extern PyMethodDef segment_functions[];
int ready_segments(PyObject *module);
