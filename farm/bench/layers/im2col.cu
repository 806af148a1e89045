// The im2col of a whole batch in one kernel: input [N, C, H, W] to columns [C R S, N H' W'], the layout in which one
// GEMM or SpMM serves the batch. A thread has one channel at one output position and writes its R S values; neighbours
// write neighbouring columns. All sizes but the batch are macros.

extern "C" __global__ void __launch_bounds__(256) im2col(const float* input, float* columns, int images) {
    const unsigned positions = images * (H_OUT * W_OUT);
    const unsigned position = blockIdx.x * 256 + threadIdx.x;
    if (position >= positions) return;
    const unsigned image = position / (H_OUT * W_OUT), place = position % (H_OUT * W_OUT);
    const int top = static_cast<int>(place / W_OUT) * STRIDE_Y - PAD_TOP;
    const int left = static_cast<int>(place % W_OUT) * STRIDE_X - PAD_LEFT;
    for (int channel = blockIdx.y; channel < C; channel += gridDim.y) {
        const float* plane = input + (static_cast<size_t>(image) * C + channel) * (H * W);
        float* column = columns + static_cast<size_t>(channel) * (R * S) * positions + position;
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int s = 0; s < S; ++s) {
                const int y = top + r * DILATION_Y, x = left + s * DILATION_X;
                const bool inside = y >= 0 && y < H && x >= 0 && x < W;
                *column = inside ? plane[y * W + x] : 0.f;
                column += positions;
            }
        }
    }
}
