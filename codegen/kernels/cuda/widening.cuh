// Elements as float32, as tables multiply them; for elements that are not words of two. Include after memory.cuh.
__device__ __forceinline__ float widened(Element bits) {
#if DATA_TYPE == FLOAT32
    return bits;
#else
    float value;
#if DATA_TYPE == FLOAT16
    asm("cvt.f32.f16 %0,%1;" : "=f"(value) : "h"(bits));
#else
    asm("mov.b32 %0,{%1,%2};" : "=f"(value) : "h"((unsigned short)0), "h"(bits));
#endif
    return value;
#endif
}
