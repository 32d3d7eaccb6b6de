/* A stand-in for libnvidia-ml.so.1: it answers from a scenario. Layouts as nvml.h has them. */
#include <stddef.h>

#include "scenario.h"

#define NOT_FOUND 6
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define CARDS 16
#define INSTANCES 8

struct device {
    char name[16];
};

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

struct process_sample {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
};

struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct field_value {
    unsigned field, scope;
    long long time, latency;
    int type, error;
    union {
        double real;
        unsigned number;
        unsigned long long large;
        int below_zero;
    } value;
};

struct event {
    struct device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

/* Sizes and offsets, for a test that compares them with those of the bindings. */
const size_t field_value_layout[] = {
    sizeof(struct field_value),           offsetof(struct field_value, field),
    offsetof(struct field_value, scope),  offsetof(struct field_value, type),
    offsetof(struct field_value, error),  offsetof(struct field_value, value),
};
const size_t event_layout[] = {
    sizeof(struct event),
    offsetof(struct event, device),
    offsetof(struct event, type),
    offsetof(struct event, data),
};

static struct device devices[CARDS][1 + INSTANCES];

static const char *told(const char *function, const struct device *device, int *error)
{
    return answer(function, device ? device->name : "", NOT_SUPPORTED, error);
}

static const char *told_of(const char *function, const struct device *device, unsigned number,
                           int *error)
{
    char card[48];
    snprintf(card, sizeof card, "%s %u", device->name, number);
    return answer(function, card, NOT_SUPPORTED, error);
}

static const char *told_of_two(const char *function, const struct device *device, unsigned of,
                               unsigned and, int *error)
{
    char card[64];
    snprintf(card, sizeof card, "%s %u %u", device->name, of, and);
    return answer(function, card, NOT_SUPPORTED, error);
}

static int number(const char *text, int error, unsigned *value)
{
    if (text)
        *value = (unsigned)strtol(text, NULL, 10);
    return error;
}

static int string(const char *text, int error, char *value, unsigned size)
{
    if (text)
        snprintf(value, size, "%s", text);
    return error;
}

#define NUMBER(function)                                                                           \
    int function(struct device *device, unsigned *value)                                           \
    {                                                                                              \
        int error;                                                                                 \
        const char *text = told(#function, device, &error);                                        \
        return number(text, error, value);                                                         \
    }

#define NUMBER_OF(function)                                                                        \
    int function(struct device *device, unsigned of, unsigned *value)                              \
    {                                                                                              \
        int error;                                                                                 \
        const char *text = told_of(#function, device, of, &error);                                 \
        return number(text, error, value);                                                         \
    }

#define STRING(function)                                                                           \
    int function(struct device *device, char *value, unsigned size)                                \
    {                                                                                              \
        int error;                                                                                 \
        const char *text = told(#function, device, &error);                                        \
        return string(text, error, value, size);                                                   \
    }

#define NUMBERS(function)                                                                          \
    int function(struct device *device, unsigned *first, unsigned *second)                         \
    {                                                                                              \
        int error;                                                                                 \
        const char *text = told(#function, device, &error);                                        \
        if (text)                                                                                  \
            sscanf(text, "%u %u", first, second);                                                  \
        return error;                                                                              \
    }

static int large(const char *text, int error, unsigned long long *value)
{
    if (text)
        *value = strtoull(text, NULL, 0);
    return error;
}

#define LARGE(function)                                                                            \
    int function(struct device *device, unsigned long long *value)                                 \
    {                                                                                              \
        int error;                                                                                 \
        const char *text = told(#function, device, &error);                                        \
        return large(text, error, value);                                                          \
    }

#define LARGE_OF_TWO(function)                                                                     \
    int function(struct device *device, unsigned of, unsigned and, unsigned long long *value)      \
    {                                                                                              \
        int error;                                                                                 \
        const char *text = told_of_two(#function, device, of, and, &error);                        \
        return large(text, error, value);                                                          \
    }

LARGE(nvmlDeviceGetCurrentClocksEventReasons)
LARGE(nvmlDeviceGetCurrentClocksThrottleReasons)
LARGE(nvmlDeviceGetTotalEnergyConsumption)
LARGE_OF_TWO(nvmlDeviceGetNvLinkErrorCounter)
LARGE_OF_TWO(nvmlDeviceGetTotalEccErrors)
NUMBER(nvmlDeviceGetPcieReplayCounter)
NUMBER_OF(nvmlDeviceGetNvLinkState)
NUMBER_OF(nvmlDeviceGetPcieThroughput)
NUMBERS(nvmlDeviceGetDecoderUtilization)
NUMBERS(nvmlDeviceGetEccMode)
NUMBERS(nvmlDeviceGetEncoderUtilization)
NUMBERS(nvmlDeviceGetJpgUtilization)
NUMBERS(nvmlDeviceGetOfaUtilization)
NUMBER(nvmlDeviceGetArchitecture)
NUMBER(nvmlDeviceGetComputeMode)
NUMBER(nvmlDeviceGetFanSpeed)
NUMBER(nvmlDeviceGetGpuInstanceId)
NUMBER(nvmlDeviceGetMaxMigDeviceCount)
NUMBER(nvmlDeviceGetMinorNumber)
NUMBER(nvmlDeviceGetPerformanceState)
NUMBER(nvmlDeviceGetPowerManagementLimit)
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER_OF(nvmlDeviceGetClockInfo)
NUMBER_OF(nvmlDeviceGetMaxClockInfo)
NUMBER_OF(nvmlDeviceGetTemperature)
NUMBERS(nvmlDeviceGetMigMode)
NUMBERS(nvmlDeviceGetPowerManagementLimitConstraints)
STRING(nvmlDeviceGetName)
STRING(nvmlDeviceGetUUID)
STRING(nvmlDeviceGetVbiosVersion)

int nvmlInitWithFlags(unsigned flags)
{
    int error;
    (void)flags;
    answer("nvmlInitWithFlags", "", 0, &error);
    return error;
}

int nvmlShutdown(void)
{
    return 0;
}

const char *nvmlErrorString(int error)
{
    static char text[32];
    snprintf(text, sizeof text, "error %d", error);
    return text;
}

int nvmlSystemGetDriverVersion(char *value, unsigned size)
{
    int error;
    const char *text = told("nvmlSystemGetDriverVersion", NULL, &error);
    return string(text, error, value, size);
}

int nvmlDeviceGetCount_v2(unsigned *value)
{
    int error;
    const char *text = told("nvmlDeviceGetCount_v2", NULL, &error);
    return number(text, error, value);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
    char card[16];
    int error;
    snprintf(card, sizeof card, "%u", index);
    answer("nvmlDeviceGetHandleByIndex_v2", card, 0, &error);
    *device = &devices[index][0];
    snprintf(devices[index][0].name, sizeof card, "%s", card);
    return error;
}

/* An instance is there if it has a uuid. */
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *card, unsigned index, struct device **device)
{
    struct device *instance = &devices[atoi(card->name)][1 + index];
    int error;
    snprintf(instance->name, sizeof instance->name, "%d/%u", atoi(card->name), index);
    *device = instance;
    return told("nvmlDeviceGetUUID", instance, &error) ? 0 : NOT_FOUND;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
    int error;
    const char *text = told("nvmlDeviceGetPciInfo_v3", device, &error);
    return string(text, error, info->bus_id, sizeof info->bus_id);
}

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned *rates)
{
    int error;
    const char *text = told("nvmlDeviceGetUtilizationRates", device, &error);
    if (text)
        sscanf(text, "%u %u", &rates[0], &rates[1]);
    return error;
}

/* total, free, used */
int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long *memory)
{
    int error;
    const char *text = told("nvmlDeviceGetMemoryInfo", device, &error);
    if (text)
        sscanf(text, "%llu %llu %llu", &memory[0], &memory[1], &memory[2]);
    return error;
}

/* version, total, reserved, free, used */
int nvmlDeviceGetMemoryInfo_v2(struct device *device, unsigned long long *memory)
{
    int error;
    const char *text = told("nvmlDeviceGetMemoryInfo_v2", device, &error);
    if (text)
        sscanf(text, "%llu %llu %llu %llu", &memory[1], &memory[2], &memory[3], &memory[4]);
    return error;
}

/* version, sensor, degrees */
int nvmlDeviceGetTemperatureV(struct device *device, int *temperature)
{
    int error;
    const char *text = told_of("nvmlDeviceGetTemperatureV", device, (unsigned)temperature[1], &error);
    if (text)
        temperature[2] = atoi(text);
    return error;
}

/* PID:BYTES ..., BYTES empty if it can't be told */
static int processes(const char *function, struct device *device, unsigned *count,
                     struct process *found)
{
    int error;
    unsigned seen = 0, room = *count;
    const char *text = told(function, device, &error);
    if (!text)
        return error;
    while (*(text += strspn(text, " "))) {
        char *end;
        struct process process = {.gpu_instance = ~0U, .compute_instance = ~0U};
        process.pid = (unsigned)strtoul(text, &end, 10);
        process.memory = end[1] == ' ' || !end[1] ? ~0ULL : strtoull(end + 1, &end, 10);
        if (seen < room)
            found[seen] = process;
        seen++;
        text += strcspn(text, " ");
    }
    *count = seen;
    return seen > room ? INSUFFICIENT_SIZE : 0;
}

#define PROCESSES(function)                                                                        \
    int function(struct device *device, unsigned *count, struct process *found)                    \
    {                                                                                              \
        return processes(#function, device, count, found);                                         \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)

/* PID:TIME:PERCENT ...; those after `since` */
int nvmlDeviceGetProcessUtilization(struct device *device, struct process_sample *found,
                                    unsigned *count, unsigned long long since)
{
    int error;
    unsigned seen = 0, room = found ? *count : 0;
    const char *text = told("nvmlDeviceGetProcessUtilization", device, &error);
    if (!text)
        return error;
    while (*(text += strspn(text, " "))) {
        struct process_sample sample = {0};
        sscanf(text, "%u:%llu:%u", &sample.pid, &sample.time, &sample.sm);
        text += strcspn(text, " ");
        if (sample.time <= since)
            continue;
        if (seen < room)
            found[seen] = sample;
        seen++;
    }
    *count = seen;
    if (!seen)
        return NOT_FOUND;
    return seen > room ? INSUFFICIENT_SIZE : 0;
}

/* multiprocessors */
int nvmlDeviceGetAttributes_v2(struct device *device, unsigned *attributes)
{
    int error;
    const char *text = told("nvmlDeviceGetAttributes_v2", device, &error);
    return number(text, error, &attributes[0]);
}

/* by profile: multiprocessors, after version, id, P2P, slices and instances */
int nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, unsigned profile, unsigned *info)
{
    int error;
    const char *text = told_of("nvmlDeviceGetGpuInstanceProfileInfoV", device, profile, &error);
    return info[0] == 0x02000098 ? number(text, error, &info[5]) : 25;
}

/* corrected, uncorrected, pending, failure */
int nvmlDeviceGetRemappedRows(struct device *device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failure)
{
    int error;
    const char *text = told("nvmlDeviceGetRemappedRows", device, &error);
    if (text)
        sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failure);
    return error;
}

/* by field and scope: TYPE:VALUE; the call itself is refused by the line of the card alone */
int nvmlDeviceGetFieldValues(struct device *device, int count, struct field_value *fields)
{
    int error;
    answer("nvmlDeviceGetFieldValues", device->name, 0, &error);
    for (int i = 0; i < count; i++) {
        struct field_value *field = &fields[i];
        const char *text = told_of_two("nvmlDeviceGetFieldValues", device, field->field,
                                       field->scope, &field->error);
        if (!text)
            continue;
        field->type = atoi(text);
        text += strcspn(text, ":") + 1;
        if (field->type == 0)
            field->value.real = strtod(text, NULL);
        else if (field->type == 1)
            field->value.number = (unsigned)strtoul(text, NULL, 10);
        else if (field->type == 5)
            field->value.below_zero = atoi(text);
        else
            field->value.large = strtoull(text, NULL, 10);
    }
    return error;
}

struct gpm_sample {
    struct device *device;
    unsigned instance;
    unsigned long number;
};

struct gpm_metric {
    unsigned id;
    int error;
    double value;
    const char *names[3];
};

struct gpm_query {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};

/* Sizes and offsets, for a test that compares them with those of the bindings. */
const size_t gpm_layout[] = {
    offsetof(struct gpm_query, first),  offsetof(struct gpm_query, second),
    offsetof(struct gpm_query, metrics), sizeof(struct gpm_metric),
    offsetof(struct gpm_metric, error),  offsetof(struct gpm_metric, value),
};

long gpm_samples;
static unsigned long gpm_taken;

int nvmlGpmQueryDeviceSupport(struct device *device, unsigned *support)
{
    int error;
    const char *text = told("nvmlGpmQueryDeviceSupport", device, &error);
    if (support[0] != 1)
        return 25;
    return number(text, error, &support[1]);
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    int error;
    answer("nvmlGpmSampleAlloc", "", 0, &error);
    if (!error) {
        *sample = calloc(1, sizeof **sample);
        gpm_samples++;
    }
    return error;
}

int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    int error;
    answer("nvmlGpmSampleFree", "", 0, &error);
    if (!error) {
        free(sample);
        gpm_samples--;
    }
    return error;
}

int nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample)
{
    int error;
    answer("nvmlGpmSampleGet", device->name, 0, &error);
    if (!error)
        *sample = (struct gpm_sample){device, ~0U, ++gpm_taken};
    return error;
}

int nvmlGpmMigSampleGet(struct device *device, unsigned instance, struct gpm_sample *sample)
{
    int error;
    char of[48];
    snprintf(of, sizeof of, "%s %u", device->name, instance);
    answer("nvmlGpmMigSampleGet", of, 0, &error);
    if (!error)
        *sample = (struct gpm_sample){device, instance, ++gpm_taken};
    return error;
}

/* by card, `CARD.INSTANCE` for an instance, and metric; the call is refused by the line alone */
int nvmlGpmMetricsGet(struct gpm_query *query)
{
    int error;
    struct gpm_sample *first = query->first, *second = query->second;
    answer("nvmlGpmMetricsGet", "", 0, &error);
    if (error)
        return error;
    if (query->version != 1 || first->device != second->device ||
        first->instance != second->instance || first->number >= second->number)
        return 2;
    for (unsigned i = 0; i < query->count; i++) {
        struct gpm_metric *metric = &query->metrics[i];
        struct device place;
        if (second->instance == ~0U)
            place = *second->device;
        else
            snprintf(place.name, sizeof place.name, "%.4s.%hu", second->device->name,
                     (unsigned short)second->instance);
        const char *text = told_of("nvmlGpmMetricsGet", &place, metric->id, &metric->error);
        metric->value = text ? strtod(text, NULL) : 0;
    }
    return 0;
}

static unsigned long taken;
static char registered[CARDS];

int nvmlEventSetCreate(void **set)
{
    int error;
    answer("nvmlEventSetCreate", "", 0, &error);
    *set = registered;
    return error;
}

int nvmlEventSetFree(void *set)
{
    memset(set, 0, sizeof registered);
    return 0;
}

/* A card that delivers events has a line. */
int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, void *set)
{
    int error;
    (void)types;
    if (told("nvmlDeviceRegisterEvents", device, &error))
        ((char *)set)[atoi(device->name)] = 1;
    return error;
}

/* CARD:XID ..., all that have happened; each is delivered once, if the card was registered */
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds)
{
    int error;
    unsigned long seen = 0;
    const char *text = answer("nvmlEventSetWait_v2", "", TIMEOUT, &error);
    (void)milliseconds;
    if (!text)
        return error;
    while (*(text += strspn(text, " "))) {
        unsigned card = 0;
        unsigned long long xid = 0;
        sscanf(text, "%u:%llu", &card, &xid);
        text += strcspn(text, " ");
        if (seen++ < taken)
            continue;
        taken++;
        if (!((char *)set)[card])
            continue;
        *event = (struct event){.device = &devices[card][0], .type = 8, .data = xid};
        return 0;
    }
    return TIMEOUT;
}
