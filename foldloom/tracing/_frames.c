/* Whether a function on the stack has exception handlers of the user's.
 *
 * Asked for every call that may raise, so it must cost next to nothing: a function without handlers is passed over by one comparison, one
 * with handlers by a look into a small table of what Python said of its code. The frames themselves have no public interface that does
 * not make an object for each. In versions of Python whose frames are not known here, the answer is always "maybe".
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000
#define KNOWS_FRAMES 1
#define Py_BUILD_CORE_MODULE 1
#include "internal/pycore_frame.h"
#else
#define KNOWS_FRAMES 0
#endif

#define TABLE_SIZE 1024 /* a power of two */

static PyObject *has_handlers; /* asks Python about a code object */
static PyObject *bottom;       /* the code below which no batch looks */
static struct {
    PyObject *code;
    int has_handlers;
} table[TABLE_SIZE]; /* codes are held, so that no other takes their place */

#if KNOWS_FRAMES
static int ask(PyObject *code)
{
    size_t place = ((size_t)code >> 5) & (TABLE_SIZE - 1);
    if (table[place].code == code)
        return table[place].has_handlers;
    PyObject *answer = PyObject_CallOneArg(has_handlers, code);
    if (answer == NULL)
        return -1;
    int is_true = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    PyObject *old = table[place].code;
    table[place].code = Py_NewRef(code);
    table[place].has_handlers = is_true;
    Py_XDECREF(old);
    return is_true;
}
#endif

static PyObject *may_be_caught(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
#if KNOWS_FRAMES
    if (has_handlers != NULL) {
        _PyInterpreterFrame *frame = PyThreadState_Get()->cframe->current_frame;
        for (; frame != NULL; frame = frame->previous) {
            PyCodeObject *code = frame->f_code;
            if ((PyObject *)code == bottom)
                break;
            if (PyBytes_GET_SIZE(code->co_exceptiontable) == 0)
                continue;
            int answer = ask((PyObject *)code);
            if (answer < 0)
                return NULL;
            if (answer)
                Py_RETURN_TRUE;
        }
        Py_RETURN_FALSE;
    }
#endif
    Py_RETURN_TRUE;
}

static PyObject *bind(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *function, *code;
    if (!PyArg_ParseTuple(args, "OO", &function, &code))
        return NULL;
    Py_XSETREF(has_handlers, Py_NewRef(function));
    Py_XSETREF(bottom, Py_NewRef(code));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "Say who knows whether a code object has handlers, and below which code not to look."},
    {"may_be_caught", may_be_caught, METH_NOARGS, "Whether a function on the stack has handlers of the user's."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "foldloom.tracing._frames",
    .m_doc = "Looks for exception handlers on the stack.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__frames(void) { return PyModule_Create(&definition); }
