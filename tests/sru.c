/* The library, compiled once for each way of building it and linked to each test program. */
#define SRU_IMPLEMENTATION
#include "../sru.h"
