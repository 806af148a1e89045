// package_program PACKAGE SIZES INPUT OUTPUT IMAGES...: runs a package with one input on raw files, which begin anew with
// each number of images, and prints the CPU time of a call. SIZES are those of an image, as in 3,224,224. Each number of
// images is run several times: step by step or as the package's own CUDA graph, and recorded by this program as another.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>

using Clock = std::chrono::steady_clock;

constexpr int TRIALS = 30, CALLS = 10;

static std::vector<int64_t> numbers(const std::string& text) {
    std::vector<int64_t> made;
    std::stringstream words(text);
    for (std::string word; std::getline(words, word, ',');) made.push_back(std::stoll(word));
    return made;
}

static torch::Tensor from_file(const char* path, std::vector<int64_t> shape) {
    auto made = torch::empty(shape);
    std::ifstream(path, std::ios::binary).read(static_cast<char*>(made.data_ptr()), made.nbytes());
    return made.cuda();
}

// Median of several trials, each of a few calls, so that no call waits for the GPU.
template <typename Call>
static double microseconds(Call call) {
    std::vector<double> found;
    for (int trial = 0; trial < TRIALS; trial++) {
        torch::cuda::synchronize();
        const auto begin = Clock::now();
        for (int i = 0; i < CALLS; i++) call();
        found.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / CALLS);
    }
    torch::cuda::synchronize();
    std::sort(found.begin(), found.end());
    return found[TRIALS / 2];
}

struct Recorded {
    at::cuda::CUDAGraph graph;
    torch::Tensor input, output, expected;
};

static bool is_equal(const torch::Tensor& a, const torch::Tensor& b) {
    torch::cuda::synchronize();
    return torch::equal(a, b);
}

int main(int count, char** arguments) {
    torch::inductor::AOTIModelPackageLoader network(arguments[1], "model", /*run_single_threaded=*/true);
    std::ofstream outputs(arguments[4], std::ios::binary);
    std::vector<std::unique_ptr<Recorded>> all;
    for (int i = 5; i < count; i++) {
        auto shape = numbers(arguments[2]);
        shape.insert(shape.begin(), std::stoll(arguments[i]));
        auto each = std::make_unique<Recorded>();
        each->input = from_file(arguments[3], shape);
        each->expected = network.run({each->input})[0];
        for (int again = 0; again < 3; again++)
            if (!is_equal(network.run({each->input})[0], each->expected)) return std::cerr << "calls differ\n", 1;
        const double of_call = microseconds([&] { network.run({each->input}); });
        {
            c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
            torch::cuda::synchronize();
            each->graph.capture_begin();
            each->output = network.run({each->input})[0];
            each->graph.capture_end();
            each->graph.replay();
        }
        if (!is_equal(each->output, each->expected)) return std::cerr << "a recorded call differs\n", 1;
        const double of_replay = microseconds([&] { each->graph.replay(); });
        std::cout << arguments[i] << " images: " << of_call << " us, recorded " << of_replay << " us\n";
        const auto held = each->expected.cpu().contiguous();
        outputs.write(static_cast<const char*>(held.data_ptr()), held.nbytes());
        all.push_back(std::move(each));
    }
    for (auto& each : all) {  // other numbers of images have run since
        each->output.zero_();
        each->graph.replay();
        if (!is_equal(each->output, each->expected)) return std::cerr << "a recorded call differs later\n", 1;
        if (!is_equal(network.run({each->input})[0], each->expected)) return std::cerr << "a later call differs\n", 1;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        if (line.find("libpython") != std::string::npos) return std::cerr << "Python is loaded\n", 1;
    return 0;
}
