// The tile, images and K group of a block, or the number of a block that has several; block_order.py has the inverse.
#if BY_PLACE
#define FIND_PLACE const Place place = place_of_block();
#define TILE_NUMBER place.tile
#define IMAGES_NUMBER place.images
#define GROUP_NUMBER place.group

struct Place {
    int tile, images, group;
};

// All K groups of a tile and its images before those of the next. The divisors are constants: other divisions take
// conversions, which the assembler does not support.
#if CLUSTER > 1
// The blocks of a cluster are neighbours in z in every order: a cluster counts as one.
__device__ __forceinline__ Place place_of_block() {
    const unsigned cluster = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * (blockIdx.z / CLUSTER));
    const unsigned rest = cluster / GROUPS, group = cluster % GROUPS * CLUSTER + blockIdx.z % CLUSTER;
    return {(int)(rest % TILES), (int)(rest / TILES), (int)group};
}
#else
__device__ __forceinline__ Place place_of_block() {
    const unsigned number = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z), rest = number / GROUPS;
    return {(int)(rest % TILES), (int)(rest / TILES), (int)(number % GROUPS)};
}
#endif
#else
#define FIND_PLACE
#define TILE_NUMBER blockIdx.x
#define IMAGES_NUMBER blockIdx.y
#define GROUP_NUMBER blockIdx.z
#endif
