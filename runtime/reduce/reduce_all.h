// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "dtrain/dtrain.h"

namespace dtrain::runtime {

// One instruction set's loops. kBest is what this processor can do.
enum class Vectors { kBaseline, kAvx2, kAvx512 };
Vectors BestVectors();

// output[i] = (inputs[0][i] op ... op inputs[k - 1][i]) / divisor for n elements of any alignment,
// applied from the first input to the last, so that the bits never depend on anything else, the
// instruction set included (but for those of NaN). k is at least 1; `output` may equal an input,
// but not overlap one otherwise. float16 and bfloat16 are accumulated in float32 and rounded once,
// to nearest even. DTRAIN_AVG adds; only floating-point types are divided.
void ReduceAll(void* output, const void* const* inputs, int k, size_t n, dtrain_type type,
               dtrain_op op, double divisor);
void ReduceAllWith(Vectors vectors, void* output, const void* const* inputs, int k, size_t n,
                   dtrain_type type, dtrain_op op, double divisor);

// As memcpy, with plain vector stores. What memcpy takes for such sizes where the processor is said
// to be good at it ("rep movsb") is 1.7 times as slow when the target is in no cache of this core.
void CopyBytes(void* to, const void* from, size_t bytes);
void CopyBytesWith(Vectors vectors, void* to, const void* from, size_t bytes);

}  // namespace dtrain::runtime
