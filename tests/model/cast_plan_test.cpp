#include "model/architecture/cast_plan.h"

#include <gtest/gtest.h>

namespace octavo::cast_plan_test {
namespace {

constexpr auto kForward = BlockPass::kForward;
constexpr auto kRecompute = BlockPass::kRecompute;
constexpr auto kBackward = BlockPass::kBackward;

// The facts of the four linears of a block without ranks that share it.
constexpr CastFacts qkv(LinearPrecision recipe) {
  return {.recipe = recipe, .input = Producer::kNorm, .output_gradient = Producer::kRopeBackward};
}
constexpr CastFacts o(LinearPrecision recipe) {
  return {.recipe = recipe,
          .input = Producer::kAttention,
          .output_gradient = Producer::kNormBackward,
          .divided = Divided::kInputs};
}
constexpr CastFacts gate_up(LinearPrecision recipe) {
  return {.recipe = recipe, .input = Producer::kNorm, .output_gradient = Producer::kSwigluBackward};
}
constexpr CastFacts divided(CastFacts facts) {
  facts.divides_layer = true;
  return facts;
}
constexpr CastFacts sharing_sequences(CastFacts facts) {
  facts.shares_sequences = true;
  return facts;
}
constexpr CastFacts with_e4m3_gradients(CastFacts facts) {
  facts.gradient_format = DType::kFloat8E4M3;
  return facts;
}

struct Work {
  Caster cast;
  Measurer measure;
  bool reduces_amax;
};
void expect_work(const TensorCast& found, const Work& expected, const char* what) {
  EXPECT_EQ(found.cast, expected.cast) << what;
  EXPECT_EQ(found.measure, expected.measure) << what;
  EXPECT_EQ(found.reduces_amax, expected.reduces_amax) << what;
}

TEST(CastPlan, WithoutFp8NobodyCasts) {
  const CastPlan plan = cast_plan(divided(qkv(LinearPrecision::kBFloat16)));
  EXPECT_FALSE(plan.fp8);
  for (const auto& moments : plan.inputs) {
    for (const TensorCast& work : moments) EXPECT_EQ(work, TensorCast());
  }
  EXPECT_EQ(plan.exchange[0], Exchange::kValues);
  EXPECT_EQ(plan.exchange[1], Exchange::kNone);
}

TEST(CastPlan, WhoCastsAndMeasuresTheFirstInput) {
  using enum LinearPrecision;
  const Work by_linear = {Caster::kLinear, Measurer::kNobody, false};
  const Work measured_by_norm = {Caster::kLinear, Measurer::kProducer, true};
  struct Case {
    const char* what;
    CastFacts facts;
    CastMoment now;
    Work expected;
  };
  for (const Case& c : {
           Case{"norm", qkv(kFp8Tensorwise), {}, {Caster::kProducer, Measurer::kProducer, false}},
           {"attention", o(kFp8Tensorwise), {}, {Caster::kLinear, Measurer::kLinear, true}},
           {"norm, divided", divided(qkv(kFp8Tensorwise)), {}, measured_by_norm},
           {"norm, shared sequences", sharing_sequences(qkv(kFp8Tensorwise)), {}, measured_by_norm},
           {"norm, watched", qkv(kFp8Tensorwise), {.watched = true}, measured_by_norm},
           {"norm, history",
            divided(qkv(kFp8Delayed)),
            {.history = true},
            {Caster::kProducer, Measurer::kProducer, false}},
           {"attention, history", o(kFp8Delayed), {.history = true}, {Caster::kLinear, Measurer::kCast, false}},
           {"norm, before the history", divided(qkv(kFp8Delayed)), {}, measured_by_norm},
           {"norm, rows", qkv(kFp8Rowwise), {}, by_linear},
           {"norm, blocks", qkv(kFp8Blockwise), {}, {Caster::kProducer, Measurer::kNobody, false}},
           {"norm, blocks of shares", divided(qkv(kFp8Blockwise)), {}, by_linear},
       }) {
    expect_work(cast_plan(c.facts).input(kForward, c.now), c.expected, c.what);
  }
}

TEST(CastPlan, GradientsWithABoundAreCastByTheirProducer) {
  using enum LinearPrecision;
  const Work bounded = {Caster::kProducer, Measurer::kNobody, false};
  for (const CastFacts& facts : {gate_up(kFp8Tensorwise), divided(gate_up(kFp8Tensorwise))}) {
    EXPECT_TRUE(cast_plan(facts).bounds_gradient);
    expect_work(cast_plan(facts).gradient({}), bounded, "bound");
  }
  // A bound has no room in e4m3, and a history needs the amaxes themselves.
  for (const CastFacts& facts : {with_e4m3_gradients(gate_up(kFp8Tensorwise)), gate_up(kFp8Delayed)}) {
    EXPECT_FALSE(cast_plan(facts).bounds_gradient);
    expect_work(cast_plan(facts).gradient({}), {Caster::kLinear, Measurer::kProducer, true}, "no bound");
  }
  expect_work(cast_plan(qkv(kFp8Tensorwise)).gradient({}), {Caster::kProducer, Measurer::kProducer, false}, "twice");
}

TEST(CastPlan, LaterPassesKnowTheScales) {
  const Work known = {Caster::kProducer, Measurer::kNobody, false};
  const CastPlan plan = cast_plan(divided(qkv(LinearPrecision::kFp8Tensorwise)));
  for (const BlockPass pass : {kRecompute, kBackward}) expect_work(plan.input(pass, {.watched = true}), known, "later");
}

TEST(CastPlan, RanksGatherBytesOnlyWithOneScalePerTensor) {
  using enum LinearPrecision;
  for (const auto& [recipe, exchange] : {std::pair{kFp8Tensorwise, Exchange::kBytes},
                                         {kFp8Delayed, Exchange::kBytes},
                                         {kFp8Rowwise, Exchange::kValues},
                                         {kFp8Blockwise, Exchange::kValues}}) {
    EXPECT_EQ(cast_plan(divided(qkv(recipe))).exchange, (std::array{exchange, Exchange::kNone}));
    EXPECT_EQ(cast_plan(divided(o(recipe))).exchange, (std::array{Exchange::kNone, exchange}));
    EXPECT_EQ(cast_plan(qkv(recipe)).exchange, (std::array{Exchange::kNone, Exchange::kNone}));
  }
}

// The forward reads the rows. The pass input_pass makes the columns, or the forward if backward does not repeat it.
TEST(CastPlan, RowsAndColumns) {
  CastFacts facts = qkv(LinearPrecision::kFp8Tensorwise);
  for (const BlockPass input_pass : {kForward, kRecompute, kBackward}) {
    for (const bool recomputes : {false, true}) {
      facts.input_pass = input_pass;
      facts.recomputes = recomputes;
      const BlockPass made_in = input_pass == kRecompute && !recomputes ? kForward : input_pass;
      for (const BlockPass pass : {kForward, kRecompute, kBackward}) {
        EXPECT_EQ(cast_plan(facts).input(pass, {}).columns, pass == made_in);
        EXPECT_EQ(cast_plan(facts).input(pass, {}).rows, pass != kBackward);
        EXPECT_TRUE(cast_plan(divided(facts)).input(pass, {}).rows) << "columns are transposed from gathered rows";
      }
    }
  }
  EXPECT_TRUE(cast_plan(facts).gradient({}).rows && cast_plan(facts).gradient({}).columns);
}

}  // namespace
}  // namespace octavo::cast_plan_test
