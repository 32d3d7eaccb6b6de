/* What a stand-in library answers: lines `FUNCTION CARD ... = ANSWER` of a file.
 *
 * The file is named by the environment variable GPU_SCENARIO and read again when it changes.
 * ANSWER is what the function gives, in words that the function understands; or `!N` for the
 * error N of the library; or `hang`, until the file says otherwise; or `crash`. A function without
 * a line isn't supported.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LONGEST_KEY 128

struct line {
    char key[LONGEST_KEY];
    char *answer;
};

static struct line *lines;
static size_t line_count;
static struct timespec read_at;
static off_t size_read;

static int by_key(const void *left, const void *right)
{
    return strcmp(((const struct line *)left)->key, ((const struct line *)right)->key);
}

static void read_scenario(void)
{
    const char *path = getenv("GPU_SCENARIO");
    struct stat status;
    if (!path || stat(path, &status) != 0)
        return;
    if (status.st_mtim.tv_sec == read_at.tv_sec && status.st_mtim.tv_nsec == read_at.tv_nsec &&
        status.st_size == size_read)
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    for (size_t i = 0; i < line_count; i++)
        free(lines[i].answer);
    line_count = 0;
    read_at = status.st_mtim;
    size_read = status.st_size;
    char *text = NULL;
    size_t room = 0;
    while (getline(&text, &room, file) > 0) {
        char *equals = strstr(text, " = ");
        if (!equals || text[0] == '#')
            continue;
        *equals = 0;
        equals[3 + strcspn(equals + 3, "\n")] = 0;
        lines = realloc(lines, (line_count + 1) * sizeof *lines);
        snprintf(lines[line_count].key, LONGEST_KEY, "%s", text);
        lines[line_count++].answer = strdup(equals + 3);
    }
    free(text);
    fclose(file);
    qsort(lines, line_count, sizeof *lines, by_key);
}

/* Give the answer of a function for a card, or NULL with the error in `*error`. */
static const char *answer(const char *function, const char *card, int unsupported, int *error)
{
    struct line wanted, *found;
    snprintf(wanted.key, LONGEST_KEY, *card ? "%s %s" : "%s", function, card);
    for (;;) {
        read_scenario();
        found = line_count ? bsearch(&wanted, lines, line_count, sizeof *lines, by_key) : NULL;
        if (!found || strcmp(found->answer, "hang") != 0)
            break;
        usleep(10000);
    }
    *error = unsupported;
    if (!found)
        return NULL;
    if (found->answer[0] == '!') {
        *error = atoi(found->answer + 1);
        return NULL;
    }
    if (strcmp(found->answer, "crash") == 0)
        raise(SIGSEGV);
    *error = 0;
    return found->answer;
}
