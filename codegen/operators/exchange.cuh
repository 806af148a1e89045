    // The blocks of a cluster read each other's sums: this one adds up those of its own kernels. Everybody is through with
    // the chunks, so that the sums take their memory.
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int p = 0; p < ROWS; ++p)
#pragma unroll
        for (int j = 0; j < SUMS; ++j) tile[(p * SUMS + j) * THREADS + thread] = sum[p][j];
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    // All shares are on their way before the first is waited for.
    float share[CLUSTER][ROWS][STORED_KERNELS], total[ROWS][STORED_KERNELS];
#pragma unroll
    for (int g = 0; g < CLUSTER; ++g) {
        unsigned sums;
        asm volatile("mapa.shared::cluster.u32 %0,%1,%2;"
                     : "=r"(sums) : "r"(tile_address + (rank * STORED_KERNELS * THREADS + thread) * 4), "r"(g));
#pragma unroll
        for (int p = 0; p < ROWS; ++p)
#pragma unroll
            for (int j = 0; j < STORED_KERNELS; ++j)
                asm volatile("ld.shared::cluster.f32 %0,[%1];"
                             : "=f"(share[g][p][j]) : "r"(sums + (p * SUMS + j) * THREADS * 4) : "memory");
    }
#pragma unroll
    for (int g = 0; g < CLUSTER; ++g)
#pragma unroll
        for (int p = 0; p < ROWS; ++p)
#pragma unroll
            for (int j = 0; j < STORED_KERNELS; ++j)
                total[p][j] = g == 0 ? share[g][p][j] : total[p][j] + share[g][p][j];
