    // The blocks of a cluster read each other's sums: this one adds up those of its own outputs. All are done with the
    // chunks, so that the sums take their memory. Those of float16 are packed until they are added up, in float32.
#if DATA_TYPE == FLOAT16
    typedef unsigned Share;
#define OWN_SUM(p, j) packed[p][j]
#define LOAD_SHARE(x, address) asm volatile("ld.shared::cluster.u32 %0,[%1];" : "=r"(x) : "r"(address) : "memory")
#else
    typedef float Share;
#define OWN_SUM(p, j) sum[p][j]
#define LOAD_SHARE(x, address) asm volatile("ld.shared::cluster.f32 %0,[%1];" : "=f"(x) : "r"(address) : "memory")
#endif
#if ASYNCHRONOUS
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
#pragma unroll
    for (int p = 0; p < ROWS; ++p)
#pragma unroll
        for (int j = 0; j < SUMS; ++j) ((Share*)tile)[(p * SUMS + j) * THREADS + thread] = OWN_SUM(p, j);
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    // All shares are on their way before the first is waited for.
    Share share[CLUSTER][ROWS][STORED_OUTPUTS];
    float total[ROWS * PAIRS][STORED_OUTPUTS];
#pragma unroll
    for (int g = 0; g < CLUSTER; ++g) {
        unsigned sums;
        asm volatile("mapa.shared::cluster.u32 %0,%1,%2;"
                     : "=r"(sums) : "r"(tile_address + (rank * STORED_OUTPUTS * THREADS + thread) * 4), "r"(g));
#pragma unroll
        for (int p = 0; p < ROWS; ++p)
#pragma unroll
            for (int j = 0; j < STORED_OUTPUTS; ++j) LOAD_SHARE(share[g][p][j], sums + (p * SUMS + j) * THREADS * 4);
    }
#pragma unroll
    for (int g = 0; g < CLUSTER; ++g)
#pragma unroll
        for (int p = 0; p < ROWS; ++p)
#pragma unroll
            for (int j = 0; j < STORED_OUTPUTS; ++j) {
#if DATA_TYPE == FLOAT16
                float first, second;
                asm("{ .reg .b16 l,h; mov.b32 {l,h},%2; cvt.f32.f16 %0,l; cvt.f32.f16 %1,h; }"
                    : "=f"(first), "=f"(second) : "r"(share[g][p][j]));
                total[2 * p][j] = g == 0 ? first : total[2 * p][j] + first;
                total[2 * p + 1][j] = g == 0 ? second : total[2 * p + 1][j] + second;
#else
                total[p][j] = g == 0 ? share[g][p][j] : total[p][j] + share[g][p][j];
#endif
            }
