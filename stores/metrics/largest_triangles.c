/* Resampling of time series by largest triangles: the choice of a value for each bucket.

   query.py has the same function in Python, and its docstring is the contract. That one is used
   where this module is not built, and takes 20 times as long. Both add and multiply in the same
   order, so they choose the same values. The GIL is held: a million values take about 4 ms. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Choose the values of a row. There are at least three results, and twice as many values. */
static void choose_of_row(const double *values, Py_ssize_t count, double *results,
                          Py_ssize_t wanted)
{
    const double size = (double)(count - 2) / (double)(wanted - 2);
    double value = results[0] = values[0];
    /* The bucket is [low, end), the next one [end, high]. */
    Py_ssize_t chosen = 0, low = 1, end = (Py_ssize_t)size + 1;
    for (Py_ssize_t n = 1; n < wanted - 1; n++) {
        Py_ssize_t high = (Py_ssize_t)((double)(n + 1) * size) + 1;
        if (high > count - 2)
            high = count - 2;
        double sum = 0;
        for (Py_ssize_t i = end; i <= high; i++)
            sum += values[i];
        /* With three results the only bucket has no successor. */
        const double average = high < end ? NAN : sum / (double)(high + 1 - end);
        const double width = (double)chosen - (double)(end + high) / 2, height = average - value;
        double largest = -1;
        Py_ssize_t best = 0; /* without any area: missing values have none */
        for (Py_ssize_t i = low; i < end; i++) {
            const double area = fabs((values[i] - value) * width - (double)(chosen - i) * height);
            if (area > largest) {
                largest = area;
                best = i;
            }
        }
        chosen = best;
        value = values[best];
        results[n] = isnan(average) ? average : value;
        low = end;
        end = high;
    }
    results[wanted - 1] = values[count - 1];
}

/* Get the buffer of a contiguous array of float64. */
static bool get_doubles(PyObject *array, int flags, Py_buffer *view)
{
    if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags))
        return false;
    if (view->format != NULL && !strcmp(view->format, "d"))
        return true;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_TypeError, "expected an array of float64");
    return false;
}

static PyObject *choose_values(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *rows, *results;
    if (!PyArg_ParseTuple(arguments, "O!O", &PyList_Type, &rows, &results))
        return NULL;
    Py_buffer into, row;
    if (!get_doubles(results, PyBUF_WRITABLE, &into))
        return NULL;
    const Py_ssize_t number = PyList_Size(rows), width = sizeof(double);
    const Py_ssize_t wanted = number ? into.len / width / number : 0;
    if (number && (wanted < 3 || into.len != number * wanted * width))
        PyErr_SetString(PyExc_ValueError, "expected three or more results of each row");
    for (Py_ssize_t n = 0; n < number && !PyErr_Occurred(); n++) {
        if (!get_doubles(PyList_GetItem(rows, n), 0, &row))
            break;
        if (row.len < 2 * wanted * width)
            PyErr_SetString(PyExc_ValueError, "expected twice as many values as results");
        else
            choose_of_row(row.buf, row.len / width, (double *)into.buf + n * wanted, wanted);
        PyBuffer_Release(&row);
    }
    PyBuffer_Release(&into);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef METHODS[] = {
    {"choose_values", choose_values, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "largest_triangles",
    .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit_largest_triangles(void)
{
    return PyModuleDef_Init(&MODULE);
}
