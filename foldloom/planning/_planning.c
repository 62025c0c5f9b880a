/* Planning, node by node.

   What a batch asks is planned as arrays. numpy is quick where arrays are long, but every call of it takes a microsecond or two, and a
   batch that runs in parts, because its examples branch on what was computed, plans a few dozen nodes at a time, many times over. Here
   the same is done by plain loops. Schedulers, `layout` and `lazy.columns` say in numpy what each function is to give, to the last
   number, and do so where this file was not compiled.

   Columns come as arrays of eight-byte numbers and go as bytearrays, which numpy takes over without copying. Whoever reads a
   graph from a file may have been given anything, and schedulers may be the user's: numbers that are used as indices are looked at first. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define MOST_TAKEN 40 /* arrays that one function holds */

static PyObject *name_inputs, *name_outputs, *name_ragged;
static PyObject *step_type, *read_type, *write_type, *accesses; /* of foldloom.planning.plans */
static PyObject *plan_error;

#define LONGEST INT32_MAX /* ragged value: sums of lengths stay far from what a number can hold */

/* What a function has taken, to be given back in one go. */
typedef struct {
    void *blocks[MOST_TAKEN];
    Py_buffer views[MOST_TAKEN];
    int block_count, view_count;
} Taken;

typedef struct {
    const int64_t *at;
    Py_ssize_t size;
} Column;

static void give_back(Taken *taken)
{
    while (taken->block_count)
        PyMem_Free(taken->blocks[--taken->block_count]);
    while (taken->view_count)
        PyBuffer_Release(&taken->views[--taken->view_count]);
}

/* So many zeros. */
static int64_t *take(Taken *taken, Py_ssize_t size)
{
    if (size < 0 || taken->block_count == MOST_TAKEN) {
        PyErr_Format(PyExc_IndexError, "a column of %zd numbers", size);
        return NULL;
    }
    void *block = PyMem_Calloc(size > 0 ? size : 1, sizeof(int64_t));
    if (block == NULL)
        PyErr_NoMemory();
    else
        taken->blocks[taken->block_count++] = block;
    return block;
}

static int take_view(Taken *taken, PyObject *array, int flags, Column *column)
{
    Py_buffer *view = &taken->views[taken->view_count];
    if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | flags) < 0)
        return -1;
    taken->view_count++;
    if (view->itemsize != sizeof(int64_t)) {
        PyErr_SetString(PyExc_TypeError, "a column has eight bytes for each number");
        return -1;
    }
    if ((uintptr_t)view->buf % sizeof(int64_t)) {
        PyErr_SetString(PyExc_TypeError, "a column begins at a multiple of eight bytes");
        return -1;
    }
    column->at = view->buf;
    column->size = view->len / (Py_ssize_t)sizeof(int64_t);
    return 0;
}

static int take_column(Taken *taken, PyObject *array, Column *column) { return take_view(taken, array, 0, column); }

static PyObject *new_column(Py_ssize_t size, int64_t **at)
{
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, size * (Py_ssize_t)sizeof(int64_t));
    if (bytes != NULL)
        *at = (int64_t *)PyByteArray_AS_STRING(bytes);
    return bytes;
}

static int are_below(Column column, int64_t least, int64_t bound, const char *what)
{
    for (Py_ssize_t i = 0; i < column.size; i++)
        if (column.at[i] < least || column.at[i] >= bound) {
            PyErr_Format(PyExc_IndexError, "%s %lld is not from %lld to %lld", what, (long long)column.at[i], (long long)least,
                         (long long)bound - 1);
            return 0;
        }
    return 1;
}

#define MOST_OPS INT32_MAX
#define MOST_VALUES ((int64_t)1 << 48) /* more than memory holds, and far from what a number can hold */

static int is_count(long long number, int64_t most, const char *what)
{
    if (number >= 0 && number <= most)
        return 1;
    PyErr_Format(PyExc_IndexError, "the number of %s, %lld, is not from 0 to %lld", what, number, (long long)most);
    return 0;
}

/* ---- Graphs. */

/* One side of all ops: the types of op `o` are those from first[o] to first[o + 1]. */
typedef struct {
    int64_t *first;
    int64_t *ragged;
    int64_t *ragged_of_op; /* how many of an op's are */
} Side;

typedef struct {
    Py_ssize_t ops, nodes;
    Column op_of_node, lengths;
    Side in, out;
    int64_t *operands, *values, *length; /* of each node, the first one; after the last node, how many there are */
} Graph;

static int take_side(Taken *taken, PyObject *ops, PyObject *name, Side *side)
{
    Py_ssize_t count = PyTuple_GET_SIZE(ops), total = 0, capacity = 8 * count + 8;
    if (!(side->first = take(taken, count + 1)) || !(side->ragged_of_op = take(taken, count)))
        return -1;
    int64_t *ragged = PyMem_Malloc(capacity * sizeof(int64_t));
    if (ragged == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t op = 0; op < count; op++) {
        PyObject *types = PyObject_GetAttr(PyTuple_GET_ITEM(ops, op), name);
        if (types == NULL || !PyTuple_Check(types)) {
            if (types != NULL)
                PyErr_SetString(PyExc_TypeError, "the types of an op are a tuple");
            Py_XDECREF(types);
            PyMem_Free(ragged);
            return -1;
        }
        Py_ssize_t size = PyTuple_GET_SIZE(types);
        if (total + size > capacity) {
            capacity = 2 * (total + size);
            int64_t *larger = PyMem_Realloc(ragged, capacity * sizeof(int64_t));
            if (larger == NULL) {
                PyErr_NoMemory();
                Py_DECREF(types);
                PyMem_Free(ragged);
                return -1;
            }
            ragged = larger;
        }
        for (Py_ssize_t slot = 0; slot < size; slot++) {
            PyObject *is_ragged = PyObject_GetAttr(PyTuple_GET_ITEM(types, slot), name_ragged);
            if (is_ragged == NULL) {
                Py_DECREF(types);
                PyMem_Free(ragged);
                return -1;
            }
            ragged[total + slot] = is_ragged == Py_True;
            side->ragged_of_op[op] += is_ragged == Py_True;
            Py_DECREF(is_ragged);
        }
        total += size;
        side->first[op + 1] = total;
        Py_DECREF(types);
    }
    side->ragged = ragged;
    taken->blocks[taken->block_count++] = ragged;
    return 0;
}

static int64_t rows_on(const Side *side, int64_t op, const Graph *graph, int64_t *length)
{
    int64_t rows = side->first[op + 1] - side->first[op] - side->ragged_of_op[op];
    for (int64_t n = side->ragged_of_op[op]; n > 0; n--)
        rows += graph->lengths.at[(*length)++];
    return rows;
}

/* A graph whose numbers have been looked at. */
static int take_graph(Taken *taken, PyObject *ops, PyObject *op_of_node, PyObject *lengths, Graph *graph)
{
    if (!PyTuple_Check(ops)) {
        PyErr_SetString(PyExc_TypeError, "ops are a tuple");
        return -1;
    }
    graph->ops = PyTuple_GET_SIZE(ops);
    if (take_column(taken, op_of_node, &graph->op_of_node) < 0 || take_column(taken, lengths, &graph->lengths) < 0 ||
        take_side(taken, ops, name_inputs, &graph->in) < 0 || take_side(taken, ops, name_outputs, &graph->out) < 0)
        return -1;
    if (!are_below(graph->op_of_node, 0, graph->ops, "op") || !are_below(graph->lengths, 0, LONGEST, "length"))
        return -1;
    graph->nodes = graph->op_of_node.size;
    if (!(graph->operands = take(taken, graph->nodes + 1)) || !(graph->values = take(taken, graph->nodes + 1)) ||
        !(graph->length = take(taken, graph->nodes + 1)))
        return -1;
    for (Py_ssize_t node = 0; node < graph->nodes; node++) {
        int64_t op = graph->op_of_node.at[node], length = graph->length[node];
        if (length + graph->in.ragged_of_op[op] + graph->out.ragged_of_op[op] > graph->lengths.size) {
            PyErr_SetString(PyExc_IndexError, "a graph has fewer lengths than ragged operands and outputs");
            return -1;
        }
        graph->operands[node + 1] = graph->operands[node] + rows_on(&graph->in, op, graph, &length);
        graph->values[node + 1] = graph->values[node] + rows_on(&graph->out, op, graph, &length);
        graph->length[node + 1] = length;
    }
    return 0;
}

static int has_operands(const Graph *graph, Column operands)
{
    if (operands.size == graph->operands[graph->nodes])
        return are_below(operands, 0, graph->values[graph->nodes], "operand");
    PyErr_SetString(PyExc_IndexError, "a graph has another number of operands than its nodes take");
    return 0;
}

/* ---- Scheduling. */

/* The order that sorts numbers, of equal ones the first first. There are as many as ops: few. */
static void order_of(const double *numbers, Py_ssize_t count, int64_t *order)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t place = i;
        for (; place > 0 && numbers[order[place - 1]] > numbers[i]; place--)
            order[place] = order[place - 1];
        order[place] = i;
    }
}

/* The step of every node, -1 for inputs: those of one op at one depth are a step. See schedulers/by_depth.py. */
static PyObject *by_depth(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *op_column, *depth_column, *result = NULL;
    long long op_count;
    if (!PyArg_ParseTuple(args, "OOL", &op_column, &depth_column, &op_count))
        return NULL;
    Taken taken = {0};
    Column op_of_node, depth;
    if (!is_count(op_count, MOST_OPS, "ops"))
        return NULL;
    /* A node is no deeper than there are nodes. */
    if (take_column(&taken, op_column, &op_of_node) < 0 || take_column(&taken, depth_column, &depth) < 0 ||
        !are_below(op_of_node, 0, op_count, "op") || !are_below(depth, 0, depth.size + 1, "depth"))
        goto done;
    if (depth.size != op_of_node.size) {
        PyErr_SetString(PyExc_IndexError, "a graph has a depth for each node");
        goto done;
    }
    int64_t deepest = 0, step_count = 0, *step_of_level, *step_of_node;
    for (Py_ssize_t node = 0; node < depth.size; node++)
        deepest = depth.at[node] > deepest ? depth.at[node] : deepest;
    if (op_count > 0 && deepest + 1 > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(int64_t) / op_count) {
        PyErr_NoMemory();
        goto done;
    }
    if (!(step_of_level = take(&taken, (deepest + 1) * op_count)) || !(result = new_column(depth.size, &step_of_node)))
        goto done;
    for (Py_ssize_t node = 0; node < depth.size; node++)
        step_of_level[depth.at[node] * op_count + op_of_node.at[node]] = 1;
    for (int64_t level = op_count; level < (deepest + 1) * op_count; level++)
        if (step_of_level[level])
            step_of_level[level] = step_count++;
    for (Py_ssize_t node = 0; node < depth.size; node++)
        step_of_node[node] = depth.at[node] > 0 ? step_of_level[depth.at[node] * op_count + op_of_node.at[node]] : -1;
done:
    give_back(&taken);
    return result;
}

/* The step of every node, -1 for inputs. See schedulers/by_agenda.py. */
static PyObject *by_agenda(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *ops, *op_column, *operand_column, *depth_column, *length_column, *result = NULL;
    if (!PyArg_ParseTuple(args, "OOOOO", &ops, &op_column, &operand_column, &depth_column, &length_column))
        return NULL;
    Taken taken = {0};
    Graph graph;
    Column operands, depth;
    if (take_graph(&taken, ops, op_column, length_column, &graph) < 0 || take_column(&taken, operand_column, &operands) < 0 ||
        take_column(&taken, depth_column, &depth) < 0 || !has_operands(&graph, operands) ||
        !are_below(depth, 0, depth.size + 1, "depth"))
        goto done;
    if (depth.size != graph.nodes) {
        PyErr_SetString(PyExc_IndexError, "a graph has a depth for each node");
        goto done;
    }
    int64_t *node_of_value, *first_reader, *next_reader, *readers, *waiting_for, *total, *count, *rank, *by_rank, *first, *last,
        *next;
    double *mean;
    if (!(node_of_value = take(&taken, graph.values[graph.nodes])) || !(first_reader = take(&taken, graph.nodes + 1)) ||
        !(next_reader = take(&taken, graph.nodes)) || !(readers = take(&taken, operands.size)) ||
        !(waiting_for = take(&taken, graph.nodes)) || !(total = take(&taken, graph.ops)) || !(count = take(&taken, graph.ops)) ||
        !(rank = take(&taken, graph.ops)) || !(by_rank = take(&taken, graph.ops)) || !(first = take(&taken, graph.ops)) ||
        !(last = take(&taken, graph.ops)) || !(next = take(&taken, graph.nodes)) || !(mean = (double *)take(&taken, graph.ops)))
        goto done;

    for (Py_ssize_t node = 0; node < graph.nodes; node++) {
        for (int64_t value = graph.values[node]; value < graph.values[node + 1]; value++)
            node_of_value[value] = node;
        total[graph.op_of_node.at[node]] += depth.at[node];
        count[graph.op_of_node.at[node]]++;
    }
    for (Py_ssize_t op = 0; op < graph.ops; op++)
        mean[op] = (double)total[op] / (double)(count[op] ? count[op] : 1);
    order_of(mean, graph.ops, by_rank);
    for (Py_ssize_t place = 0; place < graph.ops; place++)
        rank[by_rank[place]] = place;

    /* Who reads each node, as runs of one array. */
    for (Py_ssize_t i = 0; i < operands.size; i++)
        if (depth.at[node_of_value[operands.at[i]]] > 0)
            first_reader[node_of_value[operands.at[i]] + 1]++;
    for (Py_ssize_t node = 0; node < graph.nodes; node++) {
        first_reader[node + 1] += first_reader[node];
        next_reader[node] = first_reader[node];
    }
    for (Py_ssize_t node = 0; node < graph.nodes; node++)
        for (int64_t i = graph.operands[node]; i < graph.operands[node + 1]; i++) {
            int64_t source = node_of_value[operands.at[i]];
            if (source >= node) {
                PyErr_SetString(PyExc_IndexError, "a node reads what is made after it");
                goto done;
            }
            if (depth.at[source] > 0) {
                readers[next_reader[source]++] = node;
                waiting_for[node]++;
            }
        }

    /* The agenda of an op is a chain of nodes, numbered from one so that zero is the end. */
    int64_t *step_of_node;
    if ((result = new_column(graph.nodes, &step_of_node)) == NULL)
        goto done;
#define ADD_TO_AGENDA(node)                                                                                                      \
    do {                                                                                                                         \
        int64_t its_op = graph.op_of_node.at[node];                                                                              \
        if (first[its_op])                                                                                                       \
            next[last[its_op] - 1] = (node) + 1;                                                                                 \
        else                                                                                                                     \
            first[its_op] = (node) + 1;                                                                                          \
        last[its_op] = (node) + 1;                                                                                               \
        if (rank[its_op] < lowest)                                                                                               \
            lowest = rank[its_op];                                                                                               \
    } while (0)
    int64_t lowest = graph.ops;
    for (Py_ssize_t node = 0; node < graph.nodes; node++) {
        step_of_node[node] = -1;
        if (depth.at[node] > 0 && !waiting_for[node])
            ADD_TO_AGENDA(node);
    }
    for (int64_t step = 0; lowest < graph.ops; step++) {
        int64_t op = by_rank[lowest], node = first[op];
        first[op] = 0;
        while (node) {
            int64_t following = next[node - 1];
            next[node - 1] = 0;
            step_of_node[node - 1] = step;
            for (int64_t i = first_reader[node - 1]; i < first_reader[node]; i++)
                if (--waiting_for[readers[i]] == 0)
                    ADD_TO_AGENDA(readers[i]);
            node = following;
        }
        while (lowest < graph.ops && !first[by_rank[lowest]])
            lowest++;
    }
#undef ADD_TO_AGENDA
done:
    give_back(&taken);
    return result;
}

/* ---- Placement. See layout.py. */

typedef struct {
    int64_t size, number;
} Example;

static int larger_first(const void *a, const void *b)
{
    const Example *left = a, *right = b;
    if (left->size != right->size)
        return left->size > right->size ? -1 : 1;
    return left->number < right->number ? -1 : 1;
}

/* The nodes run after run, and the operands of all runs slot by slot. */
static PyObject *arrange(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *ops, *op_column, *operand_column, *length_column, *example_column, *step_column, *result = NULL;
    Py_ssize_t earlier_ops;
    if (!PyArg_ParseTuple(args, "OOOOOOn", &ops, &op_column, &operand_column, &length_column, &example_column, &step_column,
                          &earlier_ops))
        return NULL;
    Taken taken = {0};
    Graph graph;
    Column operands, nodes_of_example, step_of_node;
    PyObject *columns[7] = {NULL};
    if (take_graph(&taken, ops, op_column, length_column, &graph) < 0 || take_column(&taken, operand_column, &operands) < 0 ||
        take_column(&taken, example_column, &nodes_of_example) < 0 || take_column(&taken, step_column, &step_of_node) < 0 ||
        !has_operands(&graph, operands) || !are_below(step_of_node, -1, graph.nodes, "step") ||
        !are_below(nodes_of_example, 0, graph.nodes + 1, "number of nodes"))
        goto done;
    Example *examples;
    int64_t *first_node, *place_of_run, *number_in_op, *seen;
    int64_t run_ids = graph.ops + graph.nodes, total = 0;
    if (!(examples = (Example *)take(&taken, 2 * nodes_of_example.size)) || !(first_node = take(&taken, nodes_of_example.size)) ||
        !(place_of_run = take(&taken, run_ids + 1)) || !(number_in_op = take(&taken, graph.nodes)) ||
        !(seen = take(&taken, graph.ops)))
        goto done;
    for (Py_ssize_t example = 0; example < nodes_of_example.size; example++) {
        examples[example] = (Example){nodes_of_example.at[example], example};
        first_node[example] = total;
        total += nodes_of_example.at[example];
    }
    if (total != graph.nodes || step_of_node.size != graph.nodes) {
        PyErr_SetString(PyExc_IndexError, "examples and a schedule have as many nodes as their graph");
        goto done;
    }
    qsort(examples, nodes_of_example.size, sizeof(Example), larger_first);

    /* Inputs come before the steps, under the numbers of their ops. */
#define RUN(node) (step_of_node.at[node] < 0 ? graph.op_of_node.at[node] : step_of_node.at[node] + graph.ops)
    int64_t run_count = 0, input_runs = 0, input_nodes = 0, given = 0;
    for (Py_ssize_t node = 0; node < graph.nodes; node++) {
        place_of_run[RUN(node) + 1]++;
        number_in_op[node] = seen[graph.op_of_node.at[node]]++;
        input_nodes += step_of_node.at[node] < 0;
        given += step_of_node.at[node] < 0 && graph.op_of_node.at[node] >= earlier_ops;
    }
    for (int64_t run = 0; run < run_ids; run++) {
        run_count += place_of_run[run + 1] > 0;
        input_runs += run < graph.ops && place_of_run[run + 1] > 0;
    }
    int64_t *nodes, *run_op, *run_size, *values, *rows, *lengths, *input_order;
    if (!(columns[0] = new_column(graph.nodes, &nodes)) || !(columns[1] = new_column(run_count, &run_op)) ||
        !(columns[2] = new_column(run_count, &run_size)) || !(columns[3] = new_column(operands.size, &values)) ||
        !(columns[6] = new_column(given, &input_order)))
        goto done;
    for (int64_t run = 0, used = 0; run < run_ids; run++) {
        if (place_of_run[run + 1])
            run_size[used++] = place_of_run[run + 1];
        place_of_run[run + 1] += place_of_run[run];
    }
    for (Py_ssize_t i = 0; i < nodes_of_example.size; i++)
        for (int64_t node = first_node[examples[i].number], end = node + examples[i].size; node < end; node++)
            nodes[place_of_run[RUN(node)]++] = node;
#undef RUN
    int64_t blocks = 0, ragged_members = 0;
    for (int64_t run = 0, place = 0; run < run_count; place += run_size[run++]) {
        int64_t op = run_op[run] = graph.op_of_node.at[nodes[place]];
        for (int64_t i = 1; i < run_size[run]; i++)
            if (graph.op_of_node.at[nodes[place + i]] != op) {
                PyErr_SetString(plan_error != NULL ? plan_error : PyExc_ValueError, "a step holds nodes of two different ops");
                goto done;
            }
        blocks += graph.in.first[op + 1] - graph.in.first[op];
        ragged_members += graph.in.ragged_of_op[op] * run_size[run];
        if (run < input_runs && op >= earlier_ops)
            for (int64_t i = 0; i < run_size[run]; i++)
                *input_order++ = number_in_op[nodes[place + i]];
    }
    if (!(columns[4] = new_column(blocks, &rows)) || !(columns[5] = new_column(ragged_members, &lengths)))
        goto done;
    /* From here on these say where the next slot of each node begins. */
    int64_t *next_operand = graph.operands, *next_length = graph.length;
    for (int64_t run = 0, place = 0; run < run_count; place += run_size[run++])
        for (int64_t slot = graph.in.first[run_op[run]]; slot < graph.in.first[run_op[run] + 1]; slot++) {
            int64_t *before = values;
            for (int64_t i = 0; i < run_size[run]; i++) {
                int64_t node = nodes[place + i], size = 1;
                if (graph.in.ragged[slot])
                    *lengths++ = size = graph.lengths.at[next_length[node]++];
                for (; size > 0; size--)
                    *values++ = operands.at[next_operand[node]++];
            }
            *rows++ = values - before;
        }
    result = Py_BuildValue("(OOOOOOO)LL", columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], columns[6],
                           (long long)input_runs, (long long)input_nodes);
done:
    for (int i = 0; i < 7; i++)
        Py_XDECREF(columns[i]);
    give_back(&taken);
    return result;
}

/* A named tuple of numbers, the field `enumerated` of which is one of plan.Access; -1 if none is. */
static PyObject *new_record(PyObject *type, const int64_t *numbers, Py_ssize_t size, Py_ssize_t enumerated)
{
    PyObject *record = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, size);
    for (Py_ssize_t i = 0; record != NULL && i < size; i++) {
        PyObject *field = i == enumerated ? Py_NewRef(PyTuple_GET_ITEM(accesses, numbers[i])) : PyLong_FromLongLong(numbers[i]);
        if (field == NULL)
            Py_CLEAR(record);
        else
            PyTuple_SET_ITEM(record, i, field);
    }
    return record;
}

enum { SLICE, BROADCAST, GATHER };

/* A read under construction, in the order of the fields of plan.Read. */
typedef struct {
    int64_t arena, access, start, size, slots, lengths;
} Read;

static Read read_of(const int64_t *rows_of_values, const int64_t *arena_of_value, const int64_t *values, int64_t size)
{
    Read read = {0, SLICE, 0, size, 1, -1};
    if (size == 0)
        return read;
    int ascends = 1, repeats = 1;
    read.arena = arena_of_value[values[0]];
    read.start = rows_of_values[values[0]];
    for (int64_t i = 1; i < size && (ascends || repeats); i++) {
        ascends &= rows_of_values[values[i]] == read.start + i;
        repeats &= rows_of_values[values[i]] == read.start;
    }
    read.access = ascends ? SLICE : repeats ? BROADCAST : GATHER;
    return read;
}

static int add_record(PyObject *list, PyObject *type, const int64_t *numbers, Py_ssize_t size, Py_ssize_t enumerated)
{
    PyObject *record = new_record(type, numbers, size, enumerated);
    int failed = record == NULL || PyList_Append(list, record) < 0;
    Py_XDECREF(record);
    return failed ? -1 : 0;
}

/* Where every value lives, and what steps and outputs read and write. */
static PyObject *lay_out(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *ops, *op_column, *length_column, *output_column, *node_column, *run_op_column, *run_size_column, *operand_column,
        *row_column, *arena_column, *input_arena_column, *kept_column, *earlier_arena_column, *earlier_row_column, *result = NULL;
    Py_ssize_t earlier_ops, input_runs;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOOOnn", &ops, &op_column, &length_column, &output_column, &node_column,
                          &run_op_column, &run_size_column, &operand_column, &row_column, &arena_column, &input_arena_column,
                          &kept_column, &earlier_arena_column, &earlier_row_column, &earlier_ops, &input_runs))
        return NULL;
    Taken taken = {0};
    Graph graph;
    Column outputs, nodes, run_op, run_size, operands, block_rows, arena_of_output, arena_of_input, kept, earlier_arena,
        earlier_row;
    if (step_type == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "nobody has said yet what steps are");
        return NULL;
    }
    PyObject *columns[6] = {NULL}, *writes_of_inputs = PyList_New(0), *steps = PyList_New(0), *output_reads = PyList_New(0);
    if (!writes_of_inputs || !steps || !output_reads)
        goto done;
    if (take_graph(&taken, ops, op_column, length_column, &graph) < 0 || take_column(&taken, output_column, &outputs) < 0 ||
        take_column(&taken, node_column, &nodes) < 0 || take_column(&taken, run_op_column, &run_op) < 0 ||
        take_column(&taken, run_size_column, &run_size) < 0 || take_column(&taken, operand_column, &operands) < 0 ||
        take_column(&taken, row_column, &block_rows) < 0 || take_column(&taken, arena_column, &arena_of_output) < 0 ||
        take_column(&taken, input_arena_column, &arena_of_input) < 0 || take_column(&taken, kept_column, &kept) < 0 ||
        take_column(&taken, earlier_arena_column, &earlier_arena) < 0 ||
        take_column(&taken, earlier_row_column, &earlier_row) < 0)
        goto done;
    int64_t value_count = graph.values[graph.nodes];
    if (!are_below(outputs, 0, value_count, "output") || !are_below(arena_of_output, 0, kept.size, "arena") ||
        !are_below(earlier_arena, 0, kept.size, "arena") || !are_below(kept, 0, MOST_VALUES, "row"))
        goto done;
    if (earlier_arena.size > value_count || earlier_row.size != earlier_arena.size ||
        arena_of_output.size != graph.out.first[graph.ops] ||
        (graph.lengths.size && arena_of_input.size != graph.in.first[graph.ops])) {
        PyErr_SetString(PyExc_IndexError, "an op has an arena for each of its types, an earlier value an arena and a row");
        goto done;
    }

    int64_t *is_there;
    if (!are_below(nodes, 0, graph.nodes, "node") || !are_below(run_op, 0, graph.ops, "op") ||
        !are_below(run_size, 0, graph.nodes + 1, "size") || !are_below(block_rows, 0, operands.size + 1, "size") ||
        !are_below(operands, 0, value_count, "operand") || !(is_there = take(&taken, graph.nodes)))
        goto done;
    for (Py_ssize_t i = 0; i < nodes.size; i++)
        if (is_there[nodes.at[i]]++) {
            PyErr_SetString(PyExc_IndexError, "a node is there twice");
            goto done;
        }
    int64_t members = 0, blocks = 0, block_total = 0, write_count = 0;
    for (Py_ssize_t run = 0; run < run_op.size && run < run_size.size; run++) {
        members += run_size.at[run];
        blocks += graph.in.first[run_op.at[run] + 1] - graph.in.first[run_op.at[run]];
        write_count += graph.out.first[run_op.at[run] + 1] - graph.out.first[run_op.at[run]];
    }
    for (Py_ssize_t block = 0; block < block_rows.size; block++)
        block_total += block_rows.at[block];
    if (run_op.size != run_size.size || members != nodes.size || nodes.size != graph.nodes || blocks != block_rows.size ||
        block_total != operands.size) {
        PyErr_SetString(PyExc_IndexError, "runs have other numbers of nodes and operands than their graph");
        goto done;
    }
    for (Py_ssize_t run = 0, place = 0; run < run_op.size; place += run_size.at[run++])
        for (int64_t i = 0; i < run_size.at[run]; i++)
            if (graph.op_of_node.at[nodes.at[place + i]] != run_op.at[run]) {
                PyErr_SetString(PyExc_IndexError, "a run holds a node of another op");
                goto done;
            }

    int64_t *arena_of_value, *row_of_value, *filled, *indices, *block_of_output, *row_of_output, *outputs_in_arena, *by_arena,
        *written;
    if (!(columns[0] = new_column(value_count, &arena_of_value)) || !(columns[1] = new_column(value_count, &row_of_value)) ||
        !(columns[2] = new_column(kept.size, &filled)) || !(indices = take(&taken, operands.size + outputs.size)) ||
        !(columns[4] = new_column(outputs.size, &block_of_output)) || !(columns[5] = new_column(outputs.size, &row_of_output)) ||
        !(outputs_in_arena = take(&taken, kept.size)) || !(by_arena = take(&taken, outputs.size)) ||
        !(written = take(&taken, 3 * write_count)))
        goto done;
    int64_t index_count = 0;
    for (int64_t value = earlier_arena.size; value < value_count; value++)
        arena_of_value[value] = -1;
    memcpy(filled, kept.at, kept.size * sizeof(int64_t));
    memcpy(arena_of_value, earlier_arena.at, earlier_arena.size * sizeof(int64_t));
    memcpy(row_of_value, earlier_row.at, earlier_row.size * sizeof(int64_t));

    /* Each output of a run is a block of rows behind all that its arena holds. */
#define IS_EARLIER(run) ((run) < input_runs && run_op.at[run] < earlier_ops)
    int64_t *write = written, *next_value = graph.values, *next_length = graph.length;
    for (Py_ssize_t run = 0, place = 0; run < run_op.size; place += run_size.at[run++]) {
        int64_t op = run_op.at[run], size = run_size.at[run];
        if (IS_EARLIER(run))
            continue;
        for (int64_t i = 0; i < size; i++)
            next_length[nodes.at[place + i]] += graph.in.ragged_of_op[op];
        for (int64_t slot = graph.out.first[op]; slot < graph.out.first[op + 1]; slot++, write += 3) {
            int64_t arena = write[0] = arena_of_output.at[slot], start = write[1] = filled[arena];
            for (int64_t i = 0; i < size; i++) {
                int64_t node = nodes.at[place + i];
                for (int64_t left = graph.out.ragged[slot] ? graph.lengths.at[next_length[node]++] : 1; left > 0; left--) {
                    arena_of_value[next_value[node]] = arena;
                    row_of_value[next_value[node]++] = filled[arena]++;
                }
            }
            write[2] = filled[arena] - start;
        }
    }

    for (int64_t value = earlier_arena.size; value < value_count; value++)
        if (arena_of_value[value] < 0) {
            PyErr_Format(PyExc_IndexError, "value %lld comes from before, but from no arena", (long long)value);
            goto done;
        }

    const int64_t *values = operands.at, *rows = block_rows.at;
    int64_t lengths_before = 0, member = 0;
    write = written;
    for (Py_ssize_t run = 0; run < run_op.size; run++) {
        int64_t op = run_op.at[run], size = run_size.at[run];
        int is_input = run < input_runs;
        if (IS_EARLIER(run))
            continue;
        PyObject *reads = PyList_New(0), *writes = PyList_New(0);
        int failed = reads == NULL || writes == NULL;
        Read read = {0};
        for (int64_t slot = graph.in.first[op]; !failed && slot < graph.in.first[op + 1]; slot++, values += *rows++) {
            Read here = read_of(row_of_value, arena_of_value, values, *rows);
            if (graph.in.ragged[slot] && graph.lengths.size) {
                here.lengths = lengths_before;
                lengths_before += size;
                if (*rows == 0)
                    here.arena = arena_of_input.at[slot];
            }
            if (here.access == GATHER) {
                here.start = index_count;
                for (int64_t i = 0; i < *rows; i++)
                    indices[index_count++] = row_of_value[values[i]];
            }
            /* Neighbouring gathers from one arena are one. */
            if (read.slots && read.access == GATHER && here.access == GATHER && read.arena == here.arena && read.lengths < 0 &&
                here.lengths < 0) {
                read.slots++;
                continue;
            }
            if (read.slots)
                failed = add_record(reads, read_type, (int64_t *)&read, 6, 1) < 0;
            read = here;
        }
        if (!failed && read.slots)
            failed = add_record(reads, read_type, (int64_t *)&read, 6, 1) < 0;
        for (int64_t slot = graph.out.first[op]; !failed && slot < graph.out.first[op + 1]; slot++, write += 3)
            failed = add_record(is_input ? writes_of_inputs : writes, write_type, write, 3, -1) < 0;
        if (!failed && !is_input) {
            PyObject *step = ((PyTypeObject *)step_type)->tp_alloc((PyTypeObject *)step_type, 5);
            if (step != NULL) {
                PyTuple_SET_ITEM(step, 0, PyLong_FromLongLong(op));
                PyTuple_SET_ITEM(step, 1, PyLong_FromLongLong(member));
                PyTuple_SET_ITEM(step, 2, PyLong_FromLongLong(size));
                PyTuple_SET_ITEM(step, 3, PyList_AsTuple(reads));
                PyTuple_SET_ITEM(step, 4, PyList_AsTuple(writes));
            }
            failed = step == NULL || PyErr_Occurred() || PyList_Append(steps, step) < 0;
            Py_XDECREF(step);
            member += size;
        }
        Py_XDECREF(reads);
        Py_XDECREF(writes);
        if (failed)
            goto done;
    }
#undef IS_EARLIER

    /* What the batch gives back: one block for each arena. Whoever changes the result of one example in place must not change that
       of another, so a row that several have is read once for each. */
    for (Py_ssize_t i = 0; i < outputs.size; i++)
        outputs_in_arena[arena_of_value[outputs.at[i]]]++;
    for (int64_t arena = 0, first = 0, block = 0; arena < kept.size; arena++) {
        int64_t count = outputs_in_arena[arena], found = 0;
        if (count == 0)
            continue;
        for (Py_ssize_t i = 0; i < outputs.size; i++)
            if (arena_of_value[outputs.at[i]] == arena) {
                block_of_output[i] = block;
                row_of_output[i] = found;
                by_arena[first + found++] = outputs.at[i];
            }
        Read read = read_of(row_of_value, arena_of_value, by_arena + first, count);
        if (read.access != SLICE) {
            read.access = GATHER;
            read.start = index_count;
            for (int64_t i = 0; i < count; i++)
                indices[index_count++] = row_of_value[by_arena[first + i]];
        }
        if (add_record(output_reads, read_type, (int64_t *)&read, 6, 1) < 0)
            goto done;
        first += count;
        block++;
    }
    int64_t *kept_indices;
    if ((columns[3] = new_column(index_count, &kept_indices)) == NULL)
        goto done;
    memcpy(kept_indices, indices, index_count * sizeof(int64_t));
    result = Py_BuildValue("(OOOOOO)OOO", columns[0], columns[1], columns[2], columns[3], columns[4], columns[5],
                           writes_of_inputs, steps, output_reads);
done:
    for (int i = 0; i < 6; i++)
        Py_XDECREF(columns[i]);
    Py_XDECREF(writes_of_inputs);
    Py_XDECREF(steps);
    Py_XDECREF(output_reads);
    give_back(&taken);
    return result;
}

/* ---- Which values require grad. See tracing/building/histories.py. */

#define ALWAYS (-2)
#define IF_ANY (-1)
#define MOST_SLOTS 62 /* operands that have a bit of their own */

static PyObject *histories(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *ops, *rule_column, *op_column, *operand_column, *length_column, *flag_bytes, *result = NULL;
    long long first_value;
    if (!PyArg_ParseTuple(args, "OOOOOO!L", &ops, &rule_column, &op_column, &operand_column, &length_column, &PyByteArray_Type,
                          &flag_bytes, &first_value))
        return NULL;
    Taken taken = {0};
    Graph graph;
    Column operands, rules;
    if (take_graph(&taken, ops, op_column, length_column, &graph) < 0 || take_column(&taken, operand_column, &operands) < 0 ||
        take_column(&taken, rule_column, &rules) < 0)
        goto done;
    if (!is_count(first_value, PyByteArray_GET_SIZE(flag_bytes), "values before"))
        goto done;
    char *flags = PyByteArray_AS_STRING(flag_bytes);
    int64_t value = first_value, end = first_value + graph.values[graph.nodes];
    if (operands.size != graph.operands[graph.nodes] || rules.size != graph.out.first[graph.ops] ||
        PyByteArray_GET_SIZE(flag_bytes) < end || !are_below(operands, 0, end, "operand")) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "columns of a graph do not fit each other");
        goto done;
    }
    for (Py_ssize_t node = 0; node < graph.nodes; node++) {
        int64_t op = graph.op_of_node.at[node], operand = graph.operands[node], length = graph.length[node];
        uint64_t found = 0;
        for (int64_t slot = 0, type = graph.in.first[op]; type < graph.in.first[op + 1]; slot++, type++) {
            int64_t rows = graph.in.ragged[type] ? graph.lengths.at[length++] : 1;
            for (; rows > 0; rows--)
                if (flags[operands.at[operand++]])
                    found |= (uint64_t)1 << (slot < MOST_SLOTS ? slot : MOST_SLOTS);
        }
        for (int64_t type = graph.out.first[op]; type < graph.out.first[op + 1]; type++) {
            int64_t rule = rules.at[type], rows = graph.out.ragged[type] ? graph.lengths.at[length++] : 1;
            char requires_grad = rule == ALWAYS || (rule == IF_ANY ? found != 0 : (found & (uint64_t)rule) != 0);
            for (; rows > 0; rows--)
                flags[value++] = requires_grad;
        }
    }
    result = Py_NewRef(Py_None);
done:
    give_back(&taken);
    return result;
}

/* ---- Batches that run in parts. See tracing/flushing/flush.py. */

/* The numbers below a bound that are in use, as bits. After `count_used`, the rank of each among them. */
typedef struct {
    uint64_t *bits;
    int64_t *before; /* how many are in use below each group of 64 */
    int64_t groups, count;
} Used;

static int take_used(Taken *taken, int64_t bound, Used *used)
{
    used->groups = bound / 64 + 1;
    return (used->bits = (uint64_t *)take(taken, used->groups)) && (used->before = take(taken, used->groups)) ? 0 : -1;
}

static void use(Used *used, int64_t number) { used->bits[number / 64] |= (uint64_t)1 << (number % 64); }

static void count_used(Used *used)
{
    used->count = 0;
    for (int64_t group = 0; group < used->groups; group++) {
        used->before[group] = used->count;
        for (uint64_t left = used->bits[group]; left; left &= left - 1)
            used->count++;
    }
}

static int64_t rank_of(const Used *used, int64_t number)
{
    int64_t rank = used->before[number / 64];
    for (uint64_t left = used->bits[number / 64] & (((uint64_t)1 << (number % 64)) - 1); left; left &= left - 1)
        rank++;
    return rank;
}

static PyObject *numbers_of(const Used *used)
{
    int64_t *next;
    PyObject *column = new_column(used->count, &next);
    for (int64_t group = 0; column != NULL && group < used->groups; group++)
        for (int64_t bit = 0; bit < 64 && used->bits[group] >> bit; bit++)
            if (used->bits[group] >> bit & 1)
                *next++ = 64 * group + bit;
    return column;
}

/* How many operands and outputs ops have, and how many of them are ragged, looked up when an op is met. */
typedef struct {
    int64_t *is_met, *inputs, *outputs, *ragged_inputs, *ragged_outputs;
} Arities;

static int take_arities(Taken *taken, Py_ssize_t op_count, Arities *arities)
{
    return (arities->is_met = take(taken, op_count)) && (arities->inputs = take(taken, op_count)) &&
                   (arities->outputs = take(taken, op_count)) && (arities->ragged_inputs = take(taken, op_count)) &&
                   (arities->ragged_outputs = take(taken, op_count))
               ? 0
               : -1;
}

static int look_at_types(PyObject *op, PyObject *name, int64_t *count, int64_t *ragged)
{
    PyObject *types = PyObject_GetAttr(op, name);
    int failed = types == NULL || !PyTuple_Check(types);
    for (Py_ssize_t slot = 0; !failed && slot < PyTuple_GET_SIZE(types); slot++) {
        PyObject *is_ragged = PyObject_GetAttr(PyTuple_GET_ITEM(types, slot), name_ragged);
        failed = is_ragged == NULL;
        *ragged += is_ragged == Py_True;
        Py_XDECREF(is_ragged);
    }
    if (!failed)
        *count = PyTuple_GET_SIZE(types);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "the types of an op are a tuple");
    Py_XDECREF(types);
    return failed ? -1 : 0;
}

/* All that was recorded and is not computed: what earlier parts have left, then what is new. */
typedef struct {
    Py_ssize_t nodes, left_before, op_count;
    Column op_of_node, operands, lengths, depth_of_new, example_of_node, roots, outputs, arena_of_value;
    int takes_all, in_turn;
    int64_t example_count;
    int64_t *first_operand, *first_length, *first_value, *end_value; /* of each node */
    int64_t *is_needed, *depth;
    /* Of each value its number in the order of computing, or -1 if it is not computed. Meanwhile, for those that are not, who makes
       them: -2 for the first node, -3 for the second and so on. */
    int64_t *where;
    Used earlier, ops, arenas; /* values of earlier parts, ops and arenas that the part uses */
    int64_t needed, values, part_operands, part_lengths;
} Pending;

static int is_computed(const Pending *pending, int64_t value) { return pending->where[value] >= 0; }
static int64_t maker_of(const Pending *pending, int64_t value) { return -2 - pending->where[value]; }

/* What is given is needed in any case: it is never left. */
static int is_given(const Pending *pending, Py_ssize_t node)
{
    return node >= pending->left_before && pending->depth_of_new.at[node - pending->left_before] == 0;
}

/* Find out who makes which value. */
static int find_makers(Taken *taken, Pending *pending, PyObject *ops, Column first_of_left, int64_t first_new,
                       int64_t value_count)
{
    Arities arities;
    if (take_arities(taken, pending->op_count, &arities) < 0)
        return -1;
    int64_t next_value = first_new;
    for (Py_ssize_t node = 0; node < pending->nodes; node++) {
        int64_t op = pending->op_of_node.at[node], length = pending->first_length[node];
        if (!arities.is_met[op]) {
            arities.is_met[op] = 1;
            PyObject *met = PyList_GetItem(ops, op); /* looking at one may have changed the list */
            if (met == NULL)
                return -1;
            Py_INCREF(met);
            int failed = look_at_types(met, name_inputs, &arities.inputs[op], &arities.ragged_inputs[op]) < 0 ||
                         look_at_types(met, name_outputs, &arities.outputs[op], &arities.ragged_outputs[op]) < 0;
            Py_DECREF(met);
            if (failed)
                return -1;
        }
        int64_t ragged[2] = {arities.ragged_inputs[op], arities.ragged_outputs[op]};
        int64_t rows[2] = {arities.inputs[op] - ragged[0], arities.outputs[op] - ragged[1]};
        if (length + ragged[0] + ragged[1] > pending->lengths.size) {
            PyErr_SetString(PyExc_IndexError, "there are fewer lengths than ragged operands and outputs");
            return -1;
        }
        for (int side = 0; side < 2; side++)
            for (int64_t n = ragged[side]; n > 0; n--)
                rows[side] += pending->lengths.at[length++];
        pending->first_operand[node + 1] = pending->first_operand[node] + rows[0];
        pending->first_length[node + 1] = length;
        pending->first_value[node] = node < pending->left_before ? first_of_left.at[node] : next_value;
        if (pending->first_value[node] > value_count) {
            PyErr_SetString(PyExc_IndexError, "nodes make and read other numbers of values than there are");
            return -1;
        }
        pending->end_value[node] = pending->first_value[node] + rows[1];
        if (node >= pending->left_before)
            next_value = pending->end_value[node];
        if (pending->first_value[node] < 0 || pending->end_value[node] > value_count ||
            pending->first_operand[node + 1] > pending->operands.size) {
            PyErr_SetString(PyExc_IndexError, "nodes make and read other numbers of values than there are");
            return -1;
        }
        for (int64_t value = pending->first_value[node]; value < pending->end_value[node]; value++)
            pending->where[value] = -2 - node;
    }
    if (next_value != value_count) {
        PyErr_SetString(PyExc_IndexError, "there are values that no node makes");
        return -1;
    }
    return 0;
}

static int are_known(const Pending *pending, Column values)
{
    for (Py_ssize_t i = 0; i < values.size; i++) {
        int64_t value = values.at[i], maker = maker_of(pending, value);
        if (is_computed(pending, value) ? pending->where[value] >= pending->arena_of_value.size
                                        : maker < 0 || maker >= pending->nodes || value < pending->first_value[maker] ||
                                              value >= pending->end_value[maker]) {
            PyErr_Format(PyExc_IndexError, "nobody makes value %lld", (long long)value);
            return 0;
        }
    }
    return 1;
}

/* Who is needed: what is given, what is asked for, what that is made of; and who runs along: others of the same ops, if they can. */
static int choose_nodes(Taken *taken, Pending *pending)
{
    int64_t *is_needed = pending->is_needed, *is_op_needed = take(taken, pending->op_count);
    if (is_op_needed == NULL)
        return -1;
    Column asked[2] = {pending->roots, pending->outputs};
    for (int kind = 0; kind < 2; kind++)
        for (Py_ssize_t i = 0; i < asked[kind].size; i++)
            if (!is_computed(pending, asked[kind].at[i]))
                is_needed[maker_of(pending, asked[kind].at[i])] = 1;
    for (Py_ssize_t node = pending->nodes - 1; node >= 0; node--) {
        is_needed[node] |= pending->takes_all || is_given(pending, node);
        is_op_needed[pending->op_of_node.at[node]] |= is_needed[node];
        for (int64_t i = pending->first_operand[node]; i < pending->first_operand[node + 1]; i++) {
            int64_t value = pending->operands.at[i];
            if (is_computed(pending, value))
                continue;
            if (maker_of(pending, value) >= node) {
                PyErr_SetString(PyExc_IndexError, "a node reads what is made after it");
                return -1;
            }
            is_needed[maker_of(pending, value)] |= is_needed[node];
        }
    }
    for (Py_ssize_t node = 0; node < pending->nodes; node++) {
        int runs = is_op_needed[pending->op_of_node.at[node]] != 0;
        for (int64_t i = pending->first_operand[node]; runs && !is_needed[node] && i < pending->first_operand[node + 1]; i++)
            runs = is_computed(pending, pending->operands.at[i]) || is_needed[maker_of(pending, pending->operands.at[i])];
        is_needed[node] = runs;
    }
    return 0;
}

/* What the part consists of, and how deep each node is in it. */
static int survey_part(Taken *taken, Pending *pending, int64_t arena_count)
{
    if (take_used(taken, pending->arena_of_value.size, &pending->earlier) < 0 ||
        take_used(taken, pending->op_count, &pending->ops) < 0 || take_used(taken, arena_count, &pending->arenas) < 0)
        return -1;
    for (Py_ssize_t node = 0; node < pending->nodes; node++) {
        if (!pending->is_needed[node])
            continue;
        pending->needed++;
        pending->values += pending->end_value[node] - pending->first_value[node];
        pending->part_operands += pending->first_operand[node + 1] - pending->first_operand[node];
        pending->part_lengths += pending->first_length[node + 1] - pending->first_length[node];
        use(&pending->ops, pending->op_of_node.at[node]);
        for (int64_t i = pending->first_operand[node]; i < pending->first_operand[node + 1]; i++) {
            int64_t value = pending->operands.at[i];
            if (is_computed(pending, value))
                use(&pending->earlier, pending->where[value]);
            else if (pending->depth[maker_of(pending, value)] > pending->depth[node])
                pending->depth[node] = pending->depth[maker_of(pending, value)];
        }
        pending->depth[node] += !is_given(pending, node);
    }
    for (Py_ssize_t i = 0; i < pending->outputs.size; i++)
        if (is_computed(pending, pending->outputs.at[i]))
            use(&pending->earlier, pending->where[pending->outputs.at[i]]);
    count_used(&pending->earlier);
    count_used(&pending->ops);
    for (int64_t group = 0; group < pending->earlier.groups; group++)
        for (int64_t bit = 0; bit < 64 && pending->earlier.bits[group] >> bit; bit++)
            if (pending->earlier.bits[group] >> bit & 1) {
                int64_t arena = pending->arena_of_value.at[64 * group + bit];
                if (arena < 0 || arena >= arena_count) {
                    PyErr_Format(PyExc_IndexError, "there is no arena %lld", (long long)arena);
                    return -1;
                }
                use(&pending->arenas, arena);
            }
    count_used(&pending->arenas);
    return 0;
}

enum { OP, OPERAND, OUTPUT, DEPTH, EXAMPLE, LENGTH, EARLIER, ARENA, USED_OP, ORDER, PART_COLUMNS };

static int64_t *add_column(PyObject **columns, int which, Py_ssize_t size)
{
    int64_t *at = NULL;
    columns[which] = new_column(size, &at);
    return at;
}

/* The part as columns, example after example, each in recording order. From then on its values are known by the order in which they
   are made. */
static int write_part(Taken *taken, Pending *pending, PyObject **columns)
{
    int64_t earlier_count, *first, *place, *op, *operand, *output, *depth, *nodes_of_example, *length, *order;
    earlier_count = pending->earlier.count;
    if (!(first = take(taken, pending->nodes)) || !(place = take(taken, pending->example_count + 1)) ||
        !(op = add_column(columns, OP, earlier_count + pending->needed)) ||
        !(operand = add_column(columns, OPERAND, pending->part_operands)) ||
        !(output = add_column(columns, OUTPUT, pending->outputs.size)) ||
        !(depth = add_column(columns, DEPTH, earlier_count + pending->needed)) ||
        !(nodes_of_example = add_column(columns, EXAMPLE, pending->example_count)) ||
        !(length = add_column(columns, LENGTH, pending->part_lengths)) || !(columns[EARLIER] = numbers_of(&pending->earlier)) ||
        !(columns[ARENA] = numbers_of(&pending->arenas)) || !(columns[USED_OP] = numbers_of(&pending->ops)) ||
        !(order = add_column(columns, ORDER, pending->needed)))
        return -1;
#define EXAMPLE_OF(node) (pending->in_turn ? pending->example_of_node.at[node] : 0)
    for (Py_ssize_t node = 0; node < pending->nodes; node++)
        if (pending->is_needed[node])
            place[EXAMPLE_OF(node) + 1]++;
    for (int64_t example = 0; example < pending->example_count; example++) {
        nodes_of_example[example] = place[example + 1] + (example == 0 ? earlier_count : 0);
        place[example + 1] += place[example];
    }
    for (Py_ssize_t node = 0; node < pending->nodes; node++)
        if (pending->is_needed[node])
            order[place[EXAMPLE_OF(node)]++] = node;
#undef EXAMPLE_OF
    const int64_t *earlier_values = (int64_t *)PyByteArray_AS_STRING(columns[EARLIER]);
    for (int64_t i = 0; i < earlier_count; i++) {
        *op++ = rank_of(&pending->arenas, pending->arena_of_value.at[earlier_values[i]]);
        *depth++ = 0;
    }
    int64_t made = earlier_count;
    for (int64_t i = 0; i < pending->needed; i++) {
        int64_t node = order[i];
        *op++ = pending->arenas.count + rank_of(&pending->ops, pending->op_of_node.at[node]);
        *depth++ = pending->depth[node];
        first[node] = made;
        made += pending->end_value[node] - pending->first_value[node];
        for (int64_t j = pending->first_length[node]; j < pending->first_length[node + 1]; j++)
            *length++ = pending->lengths.at[j];
    }
#define IN_PART(value)                                                                                                           \
    (is_computed(pending, value) ? rank_of(&pending->earlier, pending->where[value])                                             \
                                 : first[maker_of(pending, value)] + (value) - pending->first_value[maker_of(pending, value)])
    for (int64_t i = 0; i < pending->needed; i++)
        for (int64_t j = pending->first_operand[order[i]]; j < pending->first_operand[order[i] + 1]; j++)
            *operand++ = IN_PART(pending->operands.at[j]);
    for (Py_ssize_t i = 0; i < pending->outputs.size; i++)
        output[i] = IN_PART(pending->outputs.at[i]);
#undef IN_PART
    for (Py_ssize_t node = 0; node < pending->nodes; node++)
        for (int64_t value = pending->first_value[node]; value < pending->end_value[node]; value++)
            pending->where[value] = pending->is_needed[node] ? pending->arena_of_value.size + first[node] - earlier_count +
                                                                   value - pending->first_value[node]
                                                             : -1;
    return 0;
}

enum { LEFT_OP, LEFT_OPERAND, LEFT_LENGTH, LEFT_VALUE, LEFT_EXAMPLE, LEFT_COLUMNS };

/* What is left, as columns. */
static int write_left(const Pending *pending, PyObject **columns)
{
    int64_t count = pending->nodes - pending->needed, *op, *operand, *length, *value, *example;
    int64_t operands = pending->first_operand[pending->nodes] - pending->part_operands;
    int64_t lengths = pending->first_length[pending->nodes] - pending->part_lengths;
    if (!(op = add_column(columns, LEFT_OP, count)) || !(operand = add_column(columns, LEFT_OPERAND, operands)) ||
        !(length = add_column(columns, LEFT_LENGTH, lengths)) || !(value = add_column(columns, LEFT_VALUE, count)) ||
        !(example = add_column(columns, LEFT_EXAMPLE, count)))
        return -1;
    for (Py_ssize_t node = 0; node < pending->nodes; node++) {
        if (pending->is_needed[node])
            continue;
        *op++ = pending->op_of_node.at[node];
        *value++ = pending->first_value[node];
        *example++ = pending->example_of_node.at[node];
        for (int64_t i = pending->first_operand[node]; i < pending->first_operand[node + 1]; i++)
            *operand++ = pending->operands.at[i];
        for (int64_t i = pending->first_length[node]; i < pending->first_length[node + 1]; i++)
            *length++ = pending->lengths.at[i];
    }
    return 0;
}

/* What is to be computed now of all that was recorded and has not been, as columns of a graph of its own; and what is left. */
static PyObject *cut(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *ops, *op_column, *operand_column, *length_column, *depth_column, *first_column, *example_column, *root_column,
        *output_column, *where_array, *arena_column, *result = NULL, *part[PART_COLUMNS] = {NULL}, *left[LEFT_COLUMNS] = {NULL};
    long long first_new, value_count, arena_count, example_count;
    Pending pending = {0};
    if (!PyArg_ParseTuple(args, "O!OOOOOOOOOOLLLLp", &PyList_Type, &ops, &op_column, &operand_column, &length_column,
                          &depth_column, &first_column, &example_column, &root_column, &output_column, &where_array,
                          &arena_column, &first_new, &value_count, &arena_count, &example_count, &pending.in_turn))
        return NULL;
    if (!is_count(first_new, MOST_VALUES, "values before") || !is_count(value_count, MOST_VALUES, "values") ||
        !is_count(arena_count, MOST_OPS, "arenas") || !is_count(example_count, MOST_OPS, "examples"))
        return NULL;
    Taken taken = {0};
    Column first_of_left, where;
    pending.op_count = PyList_GET_SIZE(ops);
    pending.takes_all = root_column == Py_None;
    pending.example_count = example_count;
    if (take_column(&taken, op_column, &pending.op_of_node) < 0 || take_column(&taken, operand_column, &pending.operands) < 0 ||
        take_column(&taken, length_column, &pending.lengths) < 0 ||
        take_column(&taken, depth_column, &pending.depth_of_new) < 0 || take_column(&taken, first_column, &first_of_left) < 0 ||
        take_column(&taken, example_column, &pending.example_of_node) < 0 ||
        (!pending.takes_all && take_column(&taken, root_column, &pending.roots) < 0) ||
        take_column(&taken, output_column, &pending.outputs) < 0 || take_view(&taken, where_array, PyBUF_WRITABLE, &where) < 0 ||
        take_column(&taken, arena_column, &pending.arena_of_value) < 0)
        goto done;
    if (!are_below(pending.op_of_node, 0, pending.op_count, "op") || !are_below(pending.operands, 0, value_count, "operand") ||
        !are_below(pending.lengths, 0, LONGEST, "length") || !are_below(pending.outputs, 0, value_count, "output") ||
        !are_below(pending.roots, 0, value_count, "value") ||
        !are_below(pending.example_of_node, 0, pending.in_turn ? example_count : MOST_VALUES, "example"))
        goto done;
    Py_ssize_t nodes = pending.nodes = pending.op_of_node.size;
    pending.left_before = first_of_left.size;
    pending.where = (int64_t *)where.at;
    if (where.size < value_count || nodes != first_of_left.size + pending.depth_of_new.size ||
        pending.example_of_node.size != nodes) {
        PyErr_SetString(PyExc_IndexError, "every value has a place, and every node a depth and an example");
        goto done;
    }
    if (!(pending.first_operand = take(&taken, nodes + 1)) || !(pending.first_length = take(&taken, nodes + 1)) ||
        !(pending.first_value = take(&taken, nodes)) || !(pending.end_value = take(&taken, nodes)) ||
        !(pending.is_needed = take(&taken, nodes)) || !(pending.depth = take(&taken, nodes)))
        goto done;
    if (find_makers(&taken, &pending, ops, first_of_left, first_new, value_count) < 0 || !are_known(&pending, pending.operands) ||
        !are_known(&pending, pending.roots) || !are_known(&pending, pending.outputs) || choose_nodes(&taken, &pending) < 0 ||
        survey_part(&taken, &pending, arena_count) < 0 || write_left(&pending, left) < 0 ||
        write_part(&taken, &pending, part) < 0)
        goto done;
    result =
        Py_BuildValue("(OOOOOOOOOO)(OOOOO)L", part[OP], part[OPERAND], part[OUTPUT], part[DEPTH], part[EXAMPLE], part[LENGTH],
                      part[EARLIER], part[ARENA], part[USED_OP], part[ORDER], left[LEFT_OP], left[LEFT_OPERAND],
                      left[LEFT_LENGTH], left[LEFT_VALUE], left[LEFT_EXAMPLE], (long long)pending.values);
done:
    for (int i = 0; i < PART_COLUMNS; i++)
        Py_XDECREF(part[i]);
    for (int i = 0; i < LEFT_COLUMNS; i++)
        Py_XDECREF(left[i]);
    give_back(&taken);
    return result;
}

static PyObject *bind(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *step, *read, *write, *kinds, *error;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O", &PyType_Type, &step, &PyType_Type, &read, &PyType_Type, &write, &PyTuple_Type,
                          &kinds, &error))
        return NULL;
    PyObject *records[] = {step, read, write};
    for (int i = 0; i < 3; i++)
        if (!PyType_IsSubtype((PyTypeObject *)records[i], &PyTuple_Type))
            return PyErr_Format(PyExc_TypeError, "%R is no named tuple", records[i]);
    if (!PyExceptionClass_Check(error))
        return PyErr_Format(PyExc_TypeError, "%R is no error", error);
    if (PyTuple_GET_SIZE(kinds) != 3)
        return PyErr_Format(PyExc_ValueError, "there are three ways to read, not %zd", PyTuple_GET_SIZE(kinds));
    Py_XSETREF(plan_error, Py_NewRef(error));
    Py_XSETREF(step_type, Py_NewRef(step));
    Py_XSETREF(read_type, Py_NewRef(read));
    Py_XSETREF(write_type, Py_NewRef(write));
    Py_XSETREF(accesses, Py_NewRef(kinds));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "Say what steps, reads, writes, the three ways to read and an error are."},
    {"by_depth", by_depth, METH_VARARGS, "The step of every node, -1 for inputs: those of one op at one depth are a step."},
    {"by_agenda", by_agenda, METH_VARARGS, "The step of every node, -1 for inputs."},
    {"arrange", arrange, METH_VARARGS, "The nodes run after run, and the operands of all runs slot by slot."},
    {"lay_out", lay_out, METH_VARARGS, "Where every value lives, and what steps and outputs read and write."},
    {"histories", histories, METH_VARARGS, "Whether each value requires grad, from those of the operands and the rules of ops."},
    {"cut", cut, METH_VARARGS, "What is to be computed now, as columns of a graph of its own, and what is left."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,  .m_name = "foldloom.planning._planning", .m_doc = "Planning, node by node.", .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__planning(void)
{
    struct {
        PyObject **place;
        const char *text;
    } names[] = {
        {&name_inputs, "inputs"},
        {&name_outputs, "outputs"},
        {&name_ragged, "ragged"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL)
            return NULL;
    return PyModule_Create(&definition);
}
