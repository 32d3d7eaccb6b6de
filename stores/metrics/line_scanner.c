/* Scanner of line protocol: the series, values and times of lines whose keys are known.

   known_keys.py has the same scanner in Python, `PureScanner`, and its docstrings are the contract.
   It is used where this module is not built. It takes 20 times as long.

   Messages come from the network. `scan` accepts only bytes objects, which end with a NUL: a loop
   over digits stops there at the latest, and nothing after it is read. Numbers are accepted up to
   18 digits (times 19), so they can't overflow. The hash of keys has a secret (SipHash-1-3).

   The GIL is held: a scan of 640 KB takes about a ms, and no other thread may change the table
   meanwhile. Objects of Python are only made after the table was read, because making one can run
   the garbage collector, and so code that uses the same scanner. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MOST_ENTRIES (1u << 30)
#define LONGEST_KEY 2048 /* as in known_keys.py */
#define NONE UINT32_MAX
#define MOST_MISSED 4 /* wrong guesses in turn, after which a scan guesses no more */
#define MOST_AHEAD 16 /* lines */
#define LONGEST_NUMBER 64
#define MOST_SPARSE 3 /* columns for each value, as in known_keys.py */
#define MOST_DIGITS 18
#define MOST_DIGITS_OF_TIME 19
#define NANOSECONDS 1000000000

/* Powers of ten that a double represents exactly, as it does integers up to 2**53. */
static const double POWERS[] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
};
#define MOST_POWER 22
#define EXACT (UINT64_C(1) << 53)

/* A known key. hash: lower bits of its hash. group: NULL if lines with this key are skipped. next:
   entry of the line that last followed, the first guess for the next line: messages of one order
   need no hash. */
typedef struct {
    size_t key;
    uint32_t size, hash, column, next;
    PyObject *group;
} Entry;

/* tag: upper bits of the hash. index: of the entry, plus 1; 0: free. */
typedef struct {
    uint32_t tag, index;
} Slot;

typedef struct {
    PyObject_HEAD
    Entry *entries;
    Slot *slots;
    char *keys;
    size_t count, room;              /* of entries */
    size_t mask;                     /* number of slots - 1 */
    size_t keys_size, keys_room;
    uint64_t secret[2];
} Scanner;

/* A value of a known series. */
typedef struct {
    PyObject *group;
    int64_t time;
    double value;
    uint32_t column, piece;
} Point;

/* Values of one group and time. is_run: they are for consecutive columns, in order. is_dense: a
   value for each column from the first to the last takes less room than values with columns. */
typedef struct {
    PyObject *group;
    int64_t time;
    size_t count, used;
    uint32_t first, last;
    bool is_run, is_dense;
    char *columns, *values;
} Piece;

/* A line for the general path. key: bytes of its key, 0 if the line is not plain. before: time of
   the previous line, if that was a known one. */
typedef struct {
    size_t number, begin, size, key;
    int64_t time, before;
    double value;
    bool has_before;
} Left;

/* A line with its end, the next line, and the size and hash of its key. */
typedef struct {
    const char *line, *end, *next;
    size_t key;
    uint64_t hash;
} Head;

/* What one scan has found. */
typedef struct {
    Point *points;
    size_t count, room;
    Left *left;
    size_t left_count, most;
    Piece *pieces;
    size_t piece_count;
    size_t lines;
    int64_t time;
    bool has_time;
} Found;

#ifdef __GNUC__
#define PREFETCH __builtin_prefetch
#else
#define PREFETCH(address) ((void)(address))
#endif

#define ROTATED(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define ROUND                                                                        \
    do {                                                                             \
        a += b, c += d;                                                              \
        b = ROTATED(b, 13) ^ a, d = ROTATED(d, 16) ^ c, a = ROTATED(a, 32);          \
        c += b, a += d;                                                              \
        b = ROTATED(b, 17) ^ c, d = ROTATED(d, 21) ^ a, c = ROTATED(c, 32);          \
    } while (0)

/* Return the SipHash-1-3 of a text. */
static uint64_t hash_text(const Scanner *self, const char *text, size_t size)
{
    uint64_t a = self->secret[0] ^ UINT64_C(0x736f6d6570736575);
    uint64_t b = self->secret[1] ^ UINT64_C(0x646f72616e646f6d);
    uint64_t c = self->secret[0] ^ UINT64_C(0x6c7967656e657261);
    uint64_t d = self->secret[1] ^ UINT64_C(0x7465646279746573);
    uint64_t word, last = (uint64_t)size << 56;
    size_t rest = size;
    for (; rest >= 8; rest -= 8, text += 8) {
        memcpy(&word, text, 8);
        d ^= word;
        ROUND;
        a ^= word;
    }
    word = 0;
    memcpy(&word, text, rest);
    last ^= word;
    d ^= last;
    ROUND;
    a ^= last;
    c ^= 0xff;
    ROUND;
    ROUND;
    ROUND;
    return a ^ b ^ c ^ d;
}

/* Return the slot of a key, or the free one for it. There are twice as many slots as keys. */
static Slot *find_slot(const Scanner *self, const char *key, size_t size, uint64_t hash)
{
    size_t at = hash & self->mask;
    for (;; at = (at + 1) & self->mask) {
        Slot *slot = &self->slots[at];
        if (!slot->index)
            return slot;
        if (slot->tag == (uint32_t)(hash >> 32)) {
            const Entry *entry = &self->entries[slot->index - 1];
            if (entry->size == size && !memcmp(self->keys + entry->key, key, size))
                return slot;
        }
    }
}

static bool is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

/* Parse a number of the line protocol that is followed by a blank. Return its end, or NULL if the
   general path must parse it. */
static const char *parse_number(const char *p, double *value)
{
    const char *begin = p;
    bool is_negative = *p == '-';
    p += is_negative;
    uint64_t mantissa = 0;
    const char *first = p;
    for (; is_digit(*p); p++)
        mantissa = mantissa * 10 + (uint64_t)(*p - '0');
    ptrdiff_t digits = p - first, power = 0;
    if (*p == 'i' || (*p == 'u' && !is_negative)) {
        if (digits < 1 || digits > MOST_DIGITS || p[1] != ' ')
            return NULL;
        *value = (double)(is_negative ? -(int64_t)mantissa : (int64_t)mantissa);
        return p + 1;
    }
    if (*p == '.') {
        const char *point = ++p;
        for (; is_digit(*p); p++)
            mantissa = mantissa * 10 + (uint64_t)(*p - '0');
        power = point - p;
        digits -= power;
    }
    if (digits < 1)
        return NULL;
    if (*p == 'e' || *p == 'E') {
        p++;
        bool is_inverse = *p == '-';
        p += is_inverse || *p == '+';
        if (!is_digit(*p))
            return NULL;
        ptrdiff_t exponent = 0;
        for (; is_digit(*p); p++)
            if (exponent < 10000)
                exponent = exponent * 10 + (*p - '0');
        power += is_inverse ? -exponent : exponent;
    }
    if (*p != ' ' || p - begin > LONGEST_NUMBER)
        return NULL;
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD == 0
    if (digits <= MOST_DIGITS && mantissa <= EXACT && power >= -MOST_POWER && power <= MOST_POWER) {
        /* Both numbers are exact, so the result is rounded once, as by Python. */
        double found = (double)mantissa;
        found = power < 0 ? found / POWERS[-power] : found * POWERS[power];
        *value = is_negative ? -found : found;
        return p;
    }
#endif
    char *end;
    *value = PyOS_string_to_double(begin, &end, NULL);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return NULL;
    }
    return end == p && isfinite(*value) ? p : NULL;
}

/* Parse a time up to the end of its line, as seconds. Return the start of the next line, or NULL
   if the general path must parse it. */
static const char *parse_time(const char *p, const char *end, int64_t *time)
{
    const char *first = p;
    uint64_t found = 0;
    for (; is_digit(*p) && p - first <= MOST_DIGITS_OF_TIME; p++)
        found = found * 10 + (uint64_t)(*p - '0');
    if (p == first || p - first > MOST_DIGITS_OF_TIME || found > INT64_MAX)
        return NULL;
    p += *p == '\r';
    if (p != end && *p++ != '\n')
        return NULL;
    *time = (int64_t)(found < UINT64_C(100000000000)         ? found
                      : found < UINT64_C(100000000000000)    ? found / 1000
                      : found < UINT64_C(100000000000000000) ? found / 1000000
                                                             : found / NANOSECONDS);
    return p;
}

/* Add a point. Return false without memory. */
static bool add_point(Found *found, const Entry *entry, int64_t time, double value)
{
    if (found->count == found->room) {
        size_t room = found->room ? 2 * found->room : 128;
        Point *points = PyMem_Realloc(found->points, room * sizeof(Point));
        if (points == NULL)
            return false;
        found->points = points;
        found->room = room;
    }
    found->points[found->count++] = (Point){entry->group, time, value, entry->column, 0};
    found->time = time;
    found->has_time = true;
    return true;
}

/* Return the end of a line: its line feed, or the end of the message. */
static const char *find_end(const char *line, const char *end)
{
    const char *found = memchr(line, '\n', (size_t)(end - line));
    return found ? found : end;
}

/* Return the head of a line, and let the processor fetch the slot of its key. */
static Head find_head(const Scanner *self, const char *line, const char *end)
{
    Head head = {.line = line, .end = find_end(line, end)};
    head.next = head.end + (head.end < end);
    const char *blank = memchr(line, ' ', (size_t)(head.end - line));
    head.key = blank ? (size_t)(blank - line) : 0;
    if (head.key && self->count) {
        head.hash = hash_text(self, line, head.key);
        PREFETCH(&self->slots[head.hash & self->mask]);
    }
    return head;
}

/* Find the heads of up to `most` lines. Return their number. The keys of many nodes are not in the
   processor's cache: the memory for all these lines is fetched at the same time. */
static size_t find_heads(const Scanner *self, const char *line, const char *end, Head *heads,
                         size_t most)
{
    const Entry *entries[MOST_AHEAD];
    size_t count = 0, known = 0;
    for (; count < most && line < end; line = heads[count++].next)
        heads[count] = find_head(self, line, end);
    for (size_t n = 0; count > 1 && n < count; n++) {
        uint32_t index = heads[n].key && self->count
            ? self->slots[heads[n].hash & self->mask].index
            : 0;
        if (index) {
            entries[known] = &self->entries[index - 1];
            PREFETCH(entries[known++]);
        }
    }
    for (size_t n = 0; n < known; n++)
        PREFETCH(self->keys + entries[n]->key);
    return count;
}

/* Scan the lines of a message. Return 1; 0 if there are too many lines for the general path; -1
   without memory. */
static int scan_lines(Scanner *self, const char *body, size_t size, int64_t low, int64_t high,
                      Found *found)
{
    static const char VALUE[] = " value=";
    const size_t value_size = sizeof(VALUE) - 1;
    const char *p = body, *end = body + size;
    uint32_t guess = NONE, last = NONE;
    Head heads[MOST_AHEAD];
    size_t next_head = 0, head_count = 0;
    int missed = 0;
    while (p < end) {
        const char *line = p;
        size_t key = 0;
        found->lines++;
        uint32_t index = missed < MOST_MISSED ? guess : NONE;
        if (index != NONE) {
            const Entry *entry = &self->entries[index];
            key = entry->size;
            if (key >= (size_t)(end - p) || p[key] != ' ' || memcmp(p, self->keys + entry->key, key))
                index = NONE;
            missed = index == NONE ? missed + 1 : 0;
        }
        Head head = {.line = NULL};
        if (index == NONE) {
            if (next_head == head_count || heads[next_head].line != p) {
                size_t most = missed < MOST_MISSED ? 1 : MOST_AHEAD;
                head_count = find_heads(self, p, end, heads, most);
                next_head = 0;
            }
            head = heads[next_head++];
            if (line == head.end || *line == '#') {
                p = head.next;
                continue;
            }
            key = head.key;
            if (key && self->count) {
                uint32_t known = find_slot(self, line, key, head.hash)->index;
                index = known ? known - 1 : NONE;
            }
            if (last != NONE && index != NONE)
                self->entries[last].next = index;
        }
        if (index != NONE) {
            last = index;
            guess = self->entries[index].next;
        }
        const Entry *entry = index == NONE ? NULL : &self->entries[index];
        bool is_value = key && (size_t)(end - line) - key >= value_size
                        && !memcmp(line + key, VALUE, value_size);
        if (entry != NULL && entry->group == NULL && is_value) {
            p = find_end(line, end);
            p += p < end;
            continue;
        }
        double value;
        int64_t time;
        const char *after = is_value ? parse_number(line + key + value_size, &value) : NULL;
        const char *following = after ? parse_time(after + 1, end, &time) : NULL;
        bool is_plain = following != NULL && time >= low && time <= high;
        if (entry != NULL && entry->group != NULL && is_plain) {
            if (!add_point(found, entry, time, value))
                return -1;
            p = following;
            continue;
        }
        if (found->left_count == found->most)
            return 0;
        const char *line_end = find_end(line, end);
        found->left[found->left_count++] = (Left){
            .number = found->lines, .begin = (size_t)(line - body),
            .size = (size_t)(line_end - line), .key = is_plain ? key : 0,
            .time = is_plain ? time : 0, .before = found->time,
            .value = is_plain ? value : 0, .has_before = found->has_time,
        };
        found->has_time = false;
        p = line_end + (line_end < end);
    }
    return 1;
}

/* Sort the points into pieces, by a table of pieces. Return false without memory. */
static bool make_pieces(const Scanner *self, Found *found)
{
    size_t slots = 16;
    while (slots < 2 * found->count)
        slots *= 2;
    uint32_t *table = PyMem_Calloc(slots, sizeof(uint32_t));
    found->pieces = PyMem_Malloc((found->count + 1) * sizeof(Piece));
    if (table == NULL || found->pieces == NULL) {
        PyMem_Free(table);
        return false;
    }
    Piece *piece = NULL;
    for (size_t n = 0; n < found->count; n++) {
        Point *point = &found->points[n];
        if (piece == NULL || piece->group != point->group || piece->time != point->time) {
            struct { PyObject *group; int64_t time; } name = {point->group, point->time};
            char text[sizeof(name.group) + sizeof(name.time)];
            memcpy(text, &name.group, sizeof(name.group));
            memcpy(text + sizeof(name.group), &name.time, sizeof(name.time));
            size_t at = hash_text(self, text, sizeof(text)) & (slots - 1);
            for (; table[at]; at = (at + 1) & (slots - 1)) {
                piece = &found->pieces[table[at] - 1];
                if (piece->group == name.group && piece->time == name.time)
                    break;
            }
            if (!table[at]) {
                table[at] = (uint32_t)++found->piece_count;
                piece = &found->pieces[found->piece_count - 1];
                *piece = (Piece){.group = Py_NewRef(name.group), .time = name.time,
                                 .first = point->column, .is_run = true};
                piece->last = piece->first - 1;
            }
        }
        piece->is_run = piece->is_run && point->column == piece->last + 1;
        if (!piece->count || point->column > piece->last)
            piece->last = point->column;
        if (point->column < piece->first)
            piece->first = point->column;
        piece->count++;
        point->piece = (uint32_t)(piece - found->pieces);
    }
    PyMem_Free(table);
    return true;
}

/* Return the list of pieces: (group, time, first column, columns or None, values). */
static PyObject *list_pieces(Found *found)
{
    PyObject *list = PyList_New(0);
    for (size_t n = 0; list != NULL && n < found->piece_count; n++) {
        Piece *piece = &found->pieces[n];
        size_t span = (size_t)(piece->last - piece->first) + 1;
        piece->is_dense = span <= MOST_SPARSE * piece->count;
        size_t room = 8 * (piece->is_dense ? span : piece->count);
        PyObject *values = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
        PyObject *columns = piece->is_run
            ? Py_NewRef(Py_None)
            : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(piece->is_dense ? 0 : room));
        PyObject *one = values == NULL || columns == NULL
            ? NULL
            : Py_BuildValue("(OLIOO)", piece->group, (long long)piece->time,
                            (unsigned int)piece->first, columns, values);
        if (one == NULL || PyList_Append(list, one))
            Py_CLEAR(list);
        else {
            piece->values = PyBytes_AsString(values);
            piece->columns = piece->is_dense ? NULL : PyBytes_AsString(columns);
            double missing = NAN;
            for (size_t at = 0; piece->is_dense && !piece->is_run && at < room; at += 8)
                memcpy(piece->values + at, &missing, 8);
        }
        Py_XDECREF(one);
        Py_XDECREF(columns);
        Py_XDECREF(values);
    }
    for (size_t n = 0; list != NULL && n < found->count; n++) {
        const Point *point = &found->points[n];
        Piece *piece = &found->pieces[point->piece];
        int64_t column = point->column;
        size_t at = piece->is_dense ? (size_t)(column - piece->first) : piece->used++;
        memcpy(piece->values + 8 * at, &point->value, 8);
        if (piece->columns != NULL)
            memcpy(piece->columns + 8 * at, &column, 8);
    }
    return list;
}

static PyObject *number_or_none(bool is_number, int64_t number)
{
    return is_number ? PyLong_FromLongLong(number) : Py_NewRef(Py_None);
}

/* Return the size of the name in a key: all before its first comma. */
static size_t name_size(const char *key, size_t size)
{
    const char *comma = memchr(key, ',', size);
    return comma ? (size_t)(comma - key) : size;
}

/* Return how many lines, from this one on, are a run: plain, in turn, with the same tags and
   time. names: size of their names, with a line feed after each. */
static size_t find_run(const Left *left, size_t most, const char *body, size_t *names)
{
    const char *key = body + left->begin;
    size_t name = name_size(key, left->key), tags = left->key - name, count = 1;
    *names = name + 1;
    for (; left->key && count < most; count++) {
        const Left *next = &left[count];
        const char *other = body + next->begin;
        if (!next->key || next->number != left->number + count || next->time != left->time)
            break;
        size_t size = name_size(other, next->key);
        if (next->key - size != tags || memcmp(key + name, other + size, tags))
            break;
        *names += size + 1;
    }
    return count;
}

/* Return a run: (number, lines, names, tags, values, time, before). names: as of `find_run`. */
static PyObject *make_run(const Left *left, size_t count, const char *body, size_t names)
{
    const Left *last = &left[count - 1];
    size_t name = name_size(body + left->begin, left->key);
    PyObject *text = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)names - 1);
    PyObject *values = PyBytes_FromStringAndSize(NULL, left->key ? 8 * (Py_ssize_t)count : 0);
    if (text != NULL && values != NULL && left->key) {
        char *to = PyBytes_AsString(text), *value = PyBytes_AsString(values);
        for (size_t n = 0; n < count; n++) {
            const char *key = body + left[n].begin;
            size_t size = name_size(key, left[n].key);
            memcpy(to, key, size);
            to += size;
            if (n + 1 < count)
                *to++ = '\n';
            memcpy(value + 8 * n, &left[n].value, 8);
        }
    }
    /* Py_BuildValue would take twice as long. */
    PyObject *parts[] = {
        PyLong_FromSize_t(left->number),
        PyBytes_FromStringAndSize(body + left->begin,
                                  (Py_ssize_t)(last->begin + last->size - left->begin)),
        text,
        PyBytes_FromStringAndSize(body + left->begin + name, (Py_ssize_t)(left->key - name)),
        values,
        number_or_none(left->key != 0, left->time),
        number_or_none(left->has_before, left->before),
    };
    const Py_ssize_t size = sizeof(parts) / sizeof(*parts);
    PyObject *run = PyTuple_New(size);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (run == NULL || parts[i] == NULL || PyTuple_SetItem(run, i, Py_NewRef(parts[i])))
            Py_CLEAR(run);
        Py_XDECREF(parts[i]);
    }
    return run;
}

/* Return the list of runs of lines for the general path. */
static PyObject *list_left(const Found *found, const char *body)
{
    PyObject *list = PyList_New(0);
    for (size_t n = 0, count; list != NULL && n < found->left_count; n += count) {
        size_t names;
        count = find_run(&found->left[n], found->left_count - n, body, &names);
        PyObject *run = make_run(&found->left[n], count, body, names);
        if (run == NULL || PyList_Append(list, run))
            Py_CLEAR(list);
        Py_XDECREF(run);
    }
    return list;
}

static PyObject *scanner_scan(Scanner *self, PyObject *arguments)
{
    PyObject *body;
    long long low, high;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(arguments, "SLLn", &body, &low, &high, &most))
        return NULL;
    if (most < 0 || most > (1 << 20) || PyBytes_Size(body) > (1 << 30))
        return PyErr_Format(PyExc_ValueError, "a scan of too many lines");
    const char *text = PyBytes_AsString(body);
    Found found = {.most = (size_t)most};
    found.left = PyMem_Malloc(((size_t)most + 1) * sizeof(Left));
    PyObject *result = NULL;
    int done = found.left == NULL
        ? -1
        : scan_lines(self, text, (size_t)PyBytes_Size(body), low, high, &found);
    if (done < 0 || (done > 0 && !make_pieces(self, &found)))
        PyErr_NoMemory();
    else if (done == 0)
        result = Py_NewRef(Py_None);
    else {
        PyObject *pieces = list_pieces(&found);
        PyObject *left = pieces == NULL ? NULL : list_left(&found, text);
        if (left != NULL)
            result = Py_BuildValue("(OOnnN)", pieces, left, (Py_ssize_t)found.lines,
                                   (Py_ssize_t)found.count,
                                   number_or_none(found.has_time, found.time));
        Py_XDECREF(pieces);
        Py_XDECREF(left);
    }
    for (size_t n = 0; n < found.piece_count; n++)
        Py_DECREF(found.pieces[n].group);
    PyMem_Free(found.points);
    PyMem_Free(found.pieces);
    PyMem_Free(found.left);
    return result;
}

/* Double the slots. Return false without memory. */
static bool grow_slots(Scanner *self)
{
    size_t old_count = self->mask ? self->mask + 1 : 0, count = old_count ? 2 * old_count : 64;
    Slot *old = self->slots, *slots = PyMem_Calloc(count, sizeof(Slot));
    if (slots == NULL)
        return false;
    self->slots = slots;
    self->mask = count - 1;
    for (size_t n = 0; n < old_count; n++) {
        if (!old[n].index)
            continue;
        size_t at = self->entries[old[n].index - 1].hash & self->mask;
        while (slots[at].index)
            at = (at + 1) & self->mask;
        slots[at] = old[n];
    }
    PyMem_Free(old);
    return true;
}

static bool make_room(Scanner *self, size_t size)
{
    if (self->count == self->room) {
        size_t room = self->room ? 2 * self->room : 32;
        Entry *entries = PyMem_Realloc(self->entries, room * sizeof(Entry));
        if (entries == NULL)
            return false;
        self->entries = entries;
        self->room = room;
    }
    if (self->keys_room - self->keys_size < size) {
        size_t room = 2 * self->keys_room + size;
        char *keys = PyMem_Realloc(self->keys, room);
        if (keys == NULL)
            return false;
        self->keys = keys;
        self->keys_room = room;
    }
    return self->count < self->mask / 2 || grow_slots(self);
}

/* Remember the key of the last `size` bytes of `keys`. group: borrowed, or NULL. */
static void add_key(Scanner *self, size_t size, PyObject *group, unsigned int column)
{
    const char *key = self->keys + self->keys_size;
    uint64_t hash = hash_text(self, key, size);
    Slot *slot = find_slot(self, key, size, hash);
    Py_XINCREF(group);
    if (slot->index) {
        Entry *entry = &self->entries[slot->index - 1];
        PyObject *old = entry->group;
        entry->group = group;
        entry->column = column;
        Py_XDECREF(old);
        return;
    }
    self->entries[self->count] =
        (Entry){self->keys_size, (uint32_t)size, (uint32_t)hash, column, NONE, group};
    *slot = (Slot){(uint32_t)(hash >> 32), (uint32_t)++self->count};
    self->keys_size += size;
}

static bool has_any(const char *text, Py_ssize_t size, const char *characters)
{
    for (; *characters; characters++)
        if (memchr(text, *characters, (size_t)size))
            return true;
    return false;
}

/* Remember the keys of a run. Return false with an exception. */
static bool add_run(Scanner *self, PyObject *run)
{
    const char *names, *tags;
    Py_ssize_t names_size, tags_size;
    PyObject *group;
    unsigned int column;
    if (!PyArg_ParseTuple(run, "y#y#OI", &names, &names_size, &tags, &tags_size, &group, &column))
        return false;
    if (has_any(names, names_size, " ") || has_any(tags, tags_size, " \n")) {
        PyErr_SetString(PyExc_ValueError, "not the key of a line");
        return false;
    }
    group = group == Py_None ? NULL : group;
    for (const char *name = names, *end = names + names_size; name <= end; column++) {
        size_t of_name = (size_t)(find_end(name, end) - name);
        size_t size = of_name + (size_t)tags_size;
        const char *key = name;
        name += of_name + 1;
        if (!size || size > LONGEST_KEY)
            continue;
        if (self->count >= MOST_ENTRIES) {
            PyErr_SetString(PyExc_ValueError, "too many keys");
            return false;
        }
        if (!make_room(self, size)) {
            PyErr_NoMemory();
            return false;
        }
        char *to = self->keys + self->keys_size;
        memcpy(to, key, of_name);
        memcpy(to + of_name, tags, (size_t)tags_size);
        if (*to == '#') {
            PyErr_SetString(PyExc_ValueError, "not the key of a line");
            return false;
        }
        if (to[size - 1] != '\\')
            add_key(self, size, group, column);
    }
    return true;
}

static PyObject *scanner_add_all(Scanner *self, PyObject *keys)
{
    if (!PyList_Check(keys))
        return PyErr_Format(PyExc_TypeError, "expected a list of keys");
    /* The last reference to an old group may run code that changes the list: its size is read each
       time, and its element held. */
    for (Py_ssize_t n = 0; n < PyList_Size(keys); n++) {
        PyObject *one = Py_NewRef(PyList_GetItem(keys, n));
        bool is_added = PyTuple_Check(one) && add_run(self, one);
        Py_DECREF(one);
        if (!is_added)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "expected tuples");
    }
    Py_RETURN_NONE;
}

static Py_ssize_t scanner_length(Scanner *self)
{
    return (Py_ssize_t)self->count;
}

static PyObject *scanner_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    Py_buffer secret;
    if (keywords != NULL || !PyArg_ParseTuple(arguments, "y*", &secret))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no keywords");
    Scanner *self = NULL;
    if (secret.len != sizeof(self->secret))
        PyErr_SetString(PyExc_ValueError, "expected a secret of 16 bytes");
    else {
        allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        self = (Scanner *)allocate(type, 0);
        if (self != NULL)
            memcpy(self->secret, secret.buf, sizeof(self->secret));
    }
    PyBuffer_Release(&secret);
    return (PyObject *)self;
}

static void scanner_dealloc(Scanner *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (size_t n = 0; n < self->count; n++)
        Py_XDECREF(self->entries[n].group);
    PyMem_Free(self->entries);
    PyMem_Free(self->keys);
    PyMem_Free(self->slots);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef METHODS[] = {
    {"add_all", (PyCFunction)scanner_add_all, METH_O, NULL},
    {"scan", (PyCFunction)scanner_scan, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_new, scanner_new},
    {Py_tp_dealloc, scanner_dealloc},
    {Py_sq_length, scanner_length},
    {Py_tp_methods, METHODS},
    {0, NULL},
};

static PyType_Spec SPEC = {
    .name = "ccagent.stores.metrics.line_scanner.CompiledScanner",
    .basicsize = sizeof(Scanner),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = SLOTS,
};

static int add_types(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &SPEC, NULL);
    int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot MODULE_SLOTS[] = {{Py_mod_exec, add_types}, {0, NULL}};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "line_scanner",
    .m_slots = MODULE_SLOTS,
};

PyMODINIT_FUNC PyInit_line_scanner(void)
{
    return PyModuleDef_Init(&MODULE);
}
