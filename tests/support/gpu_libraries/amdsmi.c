/* A stand-in for libamd_smi.so: it answers from a scenario. Layouts as amdsmi.h of 7.0 has them.
 *
 * What the bindings name besides these is generated to be unsupported.
 */
#include <inttypes.h>

#include "scenario.h"

#define NOT_SUPPORTED 2
#define CARDS 16
#define TEXT 256

struct card {
    char name[16];
};

struct asic {
    char market_name[TEXT];
    uint32_t vendor_id;
    char vendor_name[TEXT];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char serial[TEXT];
    uint32_t oam_id, compute_units;
    uint64_t graphics_version;
    uint32_t subsystem_id, reserved[21];
};

struct board {
    char model_number[TEXT], serial[TEXT], fru_id[TEXT], product_name[TEXT], manufacturer[TEXT];
};

struct bios {
    char name[TEXT], build_date[TEXT], part_number[TEXT], version[TEXT];
};

struct driver {
    char version[TEXT], date[TEXT], name[TEXT];
};

struct clock {
    uint32_t clk, min_clk, max_clk;
    uint8_t locked, deep_sleep;
};

struct power {
    uint64_t socket;
    uint32_t current, average;
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t limit;
};

struct process {
    char name[TEXT];
    uint32_t pid;
    uint64_t memory;
    struct {
        uint64_t gfx, enc;
        uint32_t reserved[12];
    } engines;
    struct {
        uint64_t gtt, cpu, vram;
        uint32_t reserved[10];
    } use;
    char container[TEXT];
    uint32_t occupancy, reserved[11];
};

struct errors {
    uint64_t correctable, uncorrectable, deferred, reserved[5];
};

struct violations {
    uint64_t reference_time, time, counter, sums[6], shares[6];
    uint8_t active[6], padding[2];
    uint64_t by_part[8][8][8];
    uint8_t active_parts[4][8][8];
    uint64_t reserved[3][8][8];
};

struct page {
    uint64_t address, size;
    uint32_t status, padding;
};

struct pcie {
    struct {
        uint16_t width;
        uint32_t speed, version, slot, largest_version;
        uint64_t reserved[9];
    } is;
    struct {
        uint16_t width;
        uint32_t speed, bandwidth;
        uint64_t replays, recoveries, rollovers, naks_sent, naks_received;
        uint32_t other_end;
        uint64_t reserved[12];
    } metric;
    uint64_t reserved[32];
};

struct links {
    uint32_t count;
    struct {
        uint64_t bdf;
        uint32_t rate, bandwidth, type;
        uint64_t read, write, reserved[2];
    } links[64];
    uint64_t reserved[7];
};

/* Sizes, for a test that compares them with those of the bindings. */
const size_t sizes[] = {
    sizeof(struct errors), sizeof(struct violations), sizeof(struct page),
    sizeof(struct pcie),   sizeof(struct links),
};

static struct card cards[CARDS];

static const char *told(const char *function, const struct card *card, int *error)
{
    return answer(function, card ? card->name : "", NOT_SUPPORTED, error);
}

static void copy(char *to, const char *from)
{
    snprintf(to, TEXT, "%s", from);
}

int amdsmi_init(uint64_t flags)
{
    int error;
    (void)flags;
    answer("amdsmi_init", "", 0, &error);
    return error;
}

int amdsmi_shut_down(void)
{
    return 0;
}

/* One socket has all cards; how many is the answer. */
int amdsmi_get_socket_handles(uint32_t *count, void **sockets)
{
    if (sockets)
        sockets[0] = cards;
    *count = 1;
    return 0;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles)
{
    int error;
    const char *text = told("amdsmi_get_processor_handles", NULL, &error);
    (void)socket;
    if (!text)
        return error;
    *count = (uint32_t)atoi(text);
    for (uint32_t i = 0; handles && i < *count; i++) {
        snprintf(cards[i].name, sizeof cards[i].name, "%u", i);
        handles[i] = &cards[i];
    }
    return 0;
}

int amdsmi_get_gpu_device_bdf(struct card *card, uint64_t *bdf)
{
    int error;
    unsigned domain, bus, device, function;
    const char *text = told("amdsmi_get_gpu_device_bdf", card, &error);
    if (text && sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4)
        *bdf = (uint64_t)domain << 16 | bus << 8 | device << 3 | function;
    return error;
}

int amdsmi_get_gpu_device_uuid(struct card *card, uint32_t *size, char *uuid)
{
    int error;
    const char *text = told("amdsmi_get_gpu_device_uuid", card, &error);
    if (text)
        snprintf(uuid, *size, "%s", text);
    return error;
}

/* render, card */
int amdsmi_get_gpu_enumeration_info(struct card *card, uint32_t *info)
{
    int error;
    const char *text = told("amdsmi_get_gpu_enumeration_info", card, &error);
    if (text)
        sscanf(text, "%" SCNu32 " %" SCNu32, &info[0], &info[1]);
    return error;
}

/* the graphics version in hexadecimal digits, then the name; `device_id` has a line of its own */
int amdsmi_get_gpu_asic_info(struct card *card, struct asic *info)
{
    int error, end = 0;
    const char *text = told("amdsmi_get_gpu_asic_info", card, &error);
    if (text) {
        sscanf(text, "%" SCNx64 " %n", &info->graphics_version, &end);
        copy(info->market_name, text + end);
        int lacks;
        const char *device = told("device_id", card, &lacks);
        info->device_id = device ? strtoull(device, NULL, 16) : 0;
        copy(info->serial, "0");
    }
    return error;
}

/* the name; `serial` has a line of its own */
int amdsmi_get_gpu_board_info(struct card *card, struct board *info)
{
    int error, lacks;
    const char *text = told("amdsmi_get_gpu_board_info", card, &error);
    const char *serial = told("serial", card, &lacks);
    if (text) {
        copy(info->product_name, text);
        copy(info->serial, serial ? serial : "");
    }
    return error;
}

int amdsmi_get_gpu_vbios_info(struct card *card, struct bios *info)
{
    int error;
    const char *text = told("amdsmi_get_gpu_vbios_info", card, &error);
    if (text)
        copy(info->version, text);
    return error;
}

int amdsmi_get_gpu_driver_info(struct card *card, struct driver *info)
{
    int error;
    const char *text = told("amdsmi_get_gpu_driver_info", card, &error);
    if (text)
        copy(info->version, text);
    return error;
}

/* cap, default, dpm, min, max */
int amdsmi_get_power_cap_info(struct card *card, uint32_t sensor, uint64_t *caps)
{
    int error;
    const char *text = told("amdsmi_get_power_cap_info", card, &error);
    (void)sensor;
    for (int i = 0; text && i < 5; i++)
        caps[i] = strtoull(text, (char **)&text, 10);
    return error;
}

/* current, average */
int amdsmi_get_power_info(struct card *card, struct power *info)
{
    int error;
    const char *text = told("amdsmi_get_power_info", card, &error);
    if (text)
        sscanf(text, "%" SCNu32 " %" SCNu32, &info->current, &info->average);
    return error;
}

static int size(const char *function, struct card *card, uint64_t *bytes)
{
    int error;
    const char *text = told(function, card, &error);
    if (text)
        *bytes = strtoull(text, NULL, 10);
    return error;
}

int amdsmi_get_gpu_memory_total(struct card *card, int kind, uint64_t *bytes)
{
    (void)kind;
    return size("amdsmi_get_gpu_memory_total", card, bytes);
}

int amdsmi_get_gpu_memory_usage(struct card *card, int kind, uint64_t *bytes)
{
    (void)kind;
    return size("amdsmi_get_gpu_memory_usage", card, bytes);
}

/* by kind of clock: current, largest */
int amdsmi_get_clock_info(struct card *card, int kind, struct clock *clock)
{
    char place[32];
    int error;
    snprintf(place, sizeof place, "%s %d", card->name, kind);
    const char *text = answer("amdsmi_get_clock_info", place, NOT_SUPPORTED, &error);
    if (text)
        sscanf(text, "%" SCNu32 " %" SCNu32, &clock->clk, &clock->max_clk);
    return error;
}

int amdsmi_get_temp_metric(struct card *card, int sensor, int metric, int64_t *degrees)
{
    char place[32];
    int error;
    (void)metric;
    snprintf(place, sizeof place, "%s %d", card->name, sensor);
    const char *text = answer("amdsmi_get_temp_metric", place, NOT_SUPPORTED, &error);
    if (text)
        *degrees = atoi(text);
    return error;
}

int amdsmi_get_gpu_fan_speed(struct card *card, uint32_t sensor, int64_t *speed)
{
    (void)sensor;
    return size("amdsmi_get_gpu_fan_speed", card, (uint64_t *)speed);
}

int amdsmi_get_gpu_fan_speed_max(struct card *card, uint32_t sensor, uint64_t *speed)
{
    (void)sensor;
    return size("amdsmi_get_gpu_fan_speed_max", card, speed);
}

int amdsmi_get_gpu_perf_level(struct card *card, uint32_t *level)
{
    uint64_t number = 0;
    int error = size("amdsmi_get_gpu_perf_level", card, &number);
    *level = (uint32_t)number;
    return error;
}

int amdsmi_get_gpu_activity(struct card *card, uint32_t *activity)
{
    int error;
    const char *text = told("amdsmi_get_gpu_activity", card, &error);
    if (text)
        sscanf(text, "%" SCNu32 " %" SCNu32 " %" SCNu32, &activity[0], &activity[1], &activity[2]);
    return error;
}

int amdsmi_get_gpu_compute_partition(struct card *card, char *partition, uint32_t room)
{
    int error;
    const char *text = told("amdsmi_get_gpu_compute_partition", card, &error);
    if (text)
        snprintf(partition, room, "%s", text);
    return error;
}

/* PID:BYTES[:COMPUTE UNITS] ... */
int amdsmi_get_gpu_process_list(struct card *card, uint32_t *count, struct process *found)
{
    int error;
    uint32_t seen = 0, room = *count;
    const char *text = told("amdsmi_get_gpu_process_list", card, &error);
    if (!text)
        return error;
    while (*(text += strspn(text, " ")) && seen < room) {
        memset(&found[seen], 0, sizeof *found);
        sscanf(text, "%" SCNu32 ":%" SCNu64 ":%" SCNu32, &found[seen].pid, &found[seen].use.vram,
               &found[seen].occupancy);
        seen++;
        text += strcspn(text, " ");
    }
    *count = seen;
    return 0;
}

/* correctable, uncorrectable */
int amdsmi_get_gpu_total_ecc_count(struct card *card, struct errors *errors)
{
    int error;
    const char *text = told("amdsmi_get_gpu_total_ecc_count", card, &error);
    if (text)
        sscanf(text, "%" SCNu64 " %" SCNu64, &errors->correctable, &errors->uncorrectable);
    return error;
}

/* what is active: prochot, power, socket, voltage regulators, memory */
int amdsmi_get_violation_status(struct card *card, struct violations *violations)
{
    int error;
    const char *text = told("amdsmi_get_violation_status", card, &error);
    for (int i = 0; text && i < 5; i++)
        violations->active[i] = (uint8_t)strtoul(text, (char **)&text, 10);
    return error;
}

/* the status of each page */
int amdsmi_get_gpu_bad_page_info(struct card *card, uint32_t *count, struct page *pages)
{
    int error;
    uint32_t seen = 0;
    const char *text = told("amdsmi_get_gpu_bad_page_info", card, &error);
    while (text && *(text += strspn(text, " "))) {
        uint32_t status = (uint32_t)strtoul(text, (char **)&text, 10);
        if (pages && seen < *count)
            pages[seen].status = status;
        seen++;
    }
    *count = seen;
    return error;
}

/* units counted, microjoules of a unit */
int amdsmi_get_energy_count(struct card *card, uint64_t *count, float *unit, uint64_t *time)
{
    int error;
    const char *text = told("amdsmi_get_energy_count", card, &error);
    (void)time;
    if (text)
        sscanf(text, "%" SCNu64 " %f", count, unit);
    return error;
}

/* replays */
int amdsmi_get_pcie_info(struct card *card, struct pcie *pcie)
{
    int error;
    const char *text = told("amdsmi_get_pcie_info", card, &error);
    if (text)
        pcie->metric.replays = strtoull(text, NULL, 10);
    return error;
}

/* READ:WRITTEN of each link */
int amdsmi_get_link_metrics(struct card *card, struct links *links)
{
    int error;
    const char *text = told("amdsmi_get_link_metrics", card, &error);
    while (text && *(text += strspn(text, " "))) {
        sscanf(text, "%" SCNu64 ":%" SCNu64, &links->links[links->count].read,
               &links->links[links->count].write);
        links->count++;
        text += strcspn(text, " ");
    }
    return error;
}
