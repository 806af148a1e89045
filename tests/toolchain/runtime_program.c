/* program BUNDLE IMAGES INPUT OUTPUT [LAYER]: runs the network, or a layer, on raw files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "farm.h"

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int number);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
int cuMemFree_v2(CUdeviceptr address);
int cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);

static int stop(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(int count, char **arguments) {
    farm_bundle *bundle;
    CUdeviceptr input, output;
    void *context, *data;
    size_t input_bytes, output_bytes;
    int device, images, layer = -1;
    FILE *file;
    if (count < 5) return stop("usage: program BUNDLE IMAGES INPUT OUTPUT [LAYER]");
    images = atoi(arguments[2]);
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
        return stop("there is no GPU");
    if (farm_open(arguments[1], &bundle) != 0) return stop(farm_error());
    if (count > 5) {
        layer = farm_find_layer(bundle, arguments[5]);
        if (layer < 0) return stop(farm_error());
        input_bytes = farm_get_layer(bundle, layer)->input_bytes * (size_t)images;
        output_bytes = farm_get_layer(bundle, layer)->output_bytes * (size_t)images;
    } else {
        if (!farm_input_count(bundle)) {
            farm_run(bundle, images, NULL, NULL, NULL);
            return stop(farm_error());
        }
        input_bytes = farm_input(bundle, 0)->image_bytes * (size_t)images;
        output_bytes = farm_output(bundle, 0)->image_bytes * (size_t)images;
    }
    data = malloc(input_bytes > output_bytes ? input_bytes : output_bytes);
    file = fopen(arguments[3], "rb");
    if (!data || !file || fread(data, 1, input_bytes, file) != input_bytes) return stop("the input cannot be read");
    fclose(file);
    if (cuMemAlloc_v2(&input, input_bytes) || cuMemAlloc_v2(&output, output_bytes)) return stop("no memory");
    if (cuMemcpyHtoD_v2(input, data, input_bytes)) return stop("the input cannot be copied");
    if (layer >= 0 ? farm_run_layer(bundle, layer, images, input, output, 0, 0, NULL)
                   : farm_run(bundle, images, &input, &output, NULL))
        return stop(farm_error());
    if (cuMemcpyDtoH_v2(data, output, output_bytes)) return stop("the output cannot be copied");
    file = fopen(arguments[4], "wb");
    if (!file || fwrite(data, 1, output_bytes, file) != output_bytes) return stop("the output cannot be written");
    fclose(file);
    cuMemFree_v2(input);
    cuMemFree_v2(output);
    farm_close(bundle);
    free(data);
    return 0;
}
