/* One translation unit: the compiler sees everything. */
#include "pool.c"
#include "vector.h"
#include "gemm.c"
#include "rows.c"
#include "attention.c"
#include "llama.c"
