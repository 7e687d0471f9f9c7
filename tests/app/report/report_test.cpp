// Tests of reading run folders, and of the page that shows them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "app/report/pages.h"
#include "app/report/run_records.h"
#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

class ReportTest : public ::testing::Test {
 protected:
  std::string write(const std::string& run, const std::string& file, const std::string& text) {
    write_file(root_ / (run + "/" + file), text);
    return root_ / run;
  }

  static std::string line(int step, double loss, const std::string& more = "") {
    return fmt::format("{{\"step\":{},\"loss\":{},\"grad_norm\":1.5,\"lr\":0.001,\"wps\":1000{}}}\n", step, loss, more);
  }

  TempDir root_;
};

TEST_F(ReportTest, ARepeatedStepReplacesLaterSteps) {
  const std::string dir = write(
      "run", "metrics.jsonl", line(1, 5) + line(2, 4) + line(3, 3.5) + line(4, 3) + line(3, 3.25) + "{\"step\":5,\"lo");
  const RunRecords run = read_run(dir);
  const Series& loss = run.metric("loss");
  ASSERT_EQ(loss.size(), 3u);
  EXPECT_EQ(loss[2].x, 3);
  EXPECT_EQ(loss[2].y, 3.25);
  EXPECT_EQ(run.last_step, 3);
  EXPECT_EQ(run.name, "run");
  EXPECT_TRUE(run.config.empty());
}

// A resumed run does not repeat lines with equal values, except for its first step.
TEST_F(ReportTest, AFirstStepAfterARestartHidesNoLaterSteps) {
  const std::string before = line(1, 5) + line(5, 4) + line(10, 3.5) + line(15, 3) + line(20, 2.5) + line(11, 3.25);
  const auto points = [&](const std::string& name, const std::string& text) {
    std::vector<std::pair<double, double>> all;
    const RunRecords run = read_run(write(name, "metrics.jsonl", text));
    for (const Point& point : run.metric("loss")) all.emplace_back(point.x, point.y);
    return all;
  };
  using Points = std::vector<std::pair<double, double>>;
  EXPECT_EQ(points("exact", before), (Points{{1, 5}, {5, 4}, {10, 3.5}, {11, 3.25}, {15, 3}, {20, 2.5}}));
  EXPECT_EQ(read_run(root_ / "exact").last_step, 20);
  // Step 15 has a second line with a validation loss that the first line did not have.
  const std::string more = before + line(15, 3, ",\"validation_loss\":3.5");
  EXPECT_EQ(points("more", more).back(), (std::pair<double, double>{20, 2.5}));
  EXPECT_EQ(read_run(root_ / "more").metric("validation_loss").size(), 1u);
  // From step 10 on the losses differ from before.
  EXPECT_EQ(points("other", before + line(15, 2.75)), (Points{{1, 5}, {5, 4}, {10, 3.5}, {11, 3.25}, {15, 2.75}}));
  EXPECT_EQ(read_run(root_ / "other").last_step, 15);
}

TEST_F(ReportTest, SkipsValuesThatAreNotNumbers) {
  const std::string dir = write("run", "metrics.jsonl",
                                "\n[]\nnull\n{\"step\":\"x\"}\n" + line(1, 5) +
                                    "{\"step\":2,\"loss\":null,\"nonfinite\":{\"loss\":\"nan\"},\"grad_norm\":2}\n" +
                                    line(7, 4) + "\xff\xfe\n");
  const RunRecords run = read_run(dir);
  EXPECT_EQ(run.metric("loss").size(), 2u);
  EXPECT_EQ(run.metric("grad_norm").size(), 3u);
}

TEST_F(ReportTest, RefusesAFolderWithoutARun) {
  for (const std::string& dir : {root_ / "none", write("empty", "log.txt", "")})
    expect_mentions(message_of<InputError>([&] { read_run(dir); }), {"is not the folder of a run", "metrics.jsonl"});
}

TEST_F(ReportTest, ARunWithoutALoggedStepHasNoMetrics) {
  const RunRecords run = read_run(write("torn", "metrics.jsonl", "{\"step\":1,\"lo"));
  EXPECT_TRUE(run.metrics.empty());
  expect_mentions(run_table(run, {}), {"steps           0\n"});
}

TEST_F(ReportTest, TheTableOfARun) {
  const std::string dir =
      write("run", "metrics.jsonl",
            line(1, 5, ",\"tokens\":1000") + line(5, 5, ",\"tokens\":5000,\"validation_loss\":4.5") +
                line(10, 3, ",\"tokens\":10000"));
  write("run", "config.yaml", "training: {steps: 2000}\n");
  std::string events;
  for (int step = 1; step <= 7; ++step) {
    events += fmt::format(
        R"({{"time":"2026-11-22T10:00:00.123Z","event":"warning","step":{0},"text":"step {0} is \u001b[31mred"}})"
        "\n",
        step);
  }
  write("run", "events.jsonl",
        events + R"({"time":"","event":"checkpoint","step":9,"text":"saved"})"
                 "\n");
  const nlohmann::ordered_json goodput = {{"goodput", 0.913}, {"wall_s", 7500}, {"restarts", 2}};
  std::string expected = fmt::format("run             {}\n", dir) +
                         "steps           10 of 2,000\n"
                         "tokens          10,000\n"
                         "loss            3.0000 at step 10\n"
                         "validation loss 4.5000 at step 5, where the smoothed loss is 4.3448\n"
                         "goodput         91.3% of 2h 5m, 2 restarts\n"
                         "warnings        7, the last 5 of them:\n";
  for (int step = 3; step <= 7; ++step)
    expected += fmt::format("  2026-11-22T10:00:00.123Z  step {} is \\x1b[31mred\n", step);
  EXPECT_EQ(run_table(read_run(dir), goodput), expected);
}

// The table, the JSON and a report show the same loss.
TEST_F(ReportTest, TheLastLossIsTheSameEverywhere) {
  std::string lines;
  for (int step = 1; step <= 300; ++step) lines += line(step, step % 2 == 0 ? 4 : 3, ",\"tokens\":1000");
  const std::string dir = write("run", "metrics.jsonl", lines);
  write("run", "config.yaml", "training: {steps: 2000}\n");
  write("run", "events.jsonl",
        R"({"time":"t","event":"warning","step":9,"text":"slow"})"
        "\n");
  const RunRecords run = read_run(dir);
  const nlohmann::ordered_json json = describe_run(run, {{"goodput", 0.5}});
  EXPECT_EQ(json.at("step"), 300);
  EXPECT_EQ(json.at("total_steps"), 2000);
  EXPECT_EQ(json.at("loss"), 4);
  EXPECT_EQ(json.at("last_loss"), 3.5);
  EXPECT_EQ(json.at("warnings"), 1);
  EXPECT_EQ(json.at("last_warnings")[0].at("text"), "slow");
  EXPECT_EQ(json.at("goodput").at("goodput"), 0.5);
  expect_mentions(report_page({&run, 1}, group_runs({&run, 1})), {"\"tail_mean\":3.5"});
  expect_mentions(run_table(run, {}), {"loss            3.5000 at step 300, mean of the last 20 logged steps\n"});
}

TEST_F(ReportTest, AFolderOfRunsStandsForTheRunsInIt) {
  write("all/b", "metrics.jsonl", line(1, 5));
  write("all/a", "metrics.jsonl", line(1, 5));
  write("all/a/earlier", "metrics.jsonl", line(1, 5));
  write("all/sweep/c", "metrics.jsonl", line(1, 5));
  write("all/corpus", "train.bin", "");
  const std::string all = root_ / "all";
  EXPECT_EQ(run_folders(all), (std::vector<std::string>{all + "/a", all + "/b", all + "/sweep/c"}));
  EXPECT_EQ(run_folders(all + "/a"), std::vector<std::string>{all + "/a"});
  EXPECT_THROW(run_folders(all + "/corpus"), InputError);
}

TEST_F(ReportTest, TheTableOfARunThatLeftLittle) {
  const std::string dir = write("run", "metrics.jsonl", "{\"step\":3,\"loss\":null,\"grad_norm\":1}\n");
  EXPECT_EQ(run_table(read_run(dir), {}), fmt::format("run             {}\n"
                                                      "steps           3\n"
                                                      "tokens          -\n"
                                                      "loss            -\n"
                                                      "validation loss -\n"
                                                      "goodput         -\n"
                                                      "warnings        0\n",
                                                      dir));
}

TEST_F(ReportTest, ReadsEventsAndStarts) {
  write("run", "metrics.jsonl", line(20, 5));
  write("run", "events.jsonl",
        R"({"time":"2026-11-22T10:00:00.123Z","event":"checkpoint","step":10,"text":"saved ck/step_00000010: 1.0 GB"})"
        "\n"
        R"({"time":"2026-11-22T10:00:00.124Z","event":"restart","step":10,"text":"resuming ck/step_00000010"})"
        "\nshort\n"
        R"({"event":"skip","step":12,"text":"step 12: the loss is nan"})"
        "\n"
        R"({"event":"ski)");
  const std::string dir = write(
      "run", "starts.jsonl",
      R"({"time":"T1","command":["octavo","train","x.yaml"],"version":"0.1","commit":"abc","hosts":["a","b"],"runs_on":"2 ranks"})"
      "\n{\"ti");
  const RunRecords run = read_run(dir);
  ASSERT_EQ(run.events.size(), 3u);
  EXPECT_EQ(run.events[0].kind, EventKind::kCheckpoint);
  EXPECT_EQ(run.events[0].step, 10);
  EXPECT_EQ(run.events[1].kind, EventKind::kRestart);
  EXPECT_EQ(run.events[1].time, "2026-11-22T10:00:00.124Z");
  EXPECT_EQ(run.events[2].kind, EventKind::kSkip);
  EXPECT_EQ(run.events[2].step, 12);
  ASSERT_EQ(run.starts.size(), 1u);
  EXPECT_EQ(run.starts[0].at("command"), "octavo train x.yaml");
  EXPECT_EQ(run.starts[0].at("hosts"), "a b");
}

nlohmann::json document_of(const std::string& page) {
  const std::string begin = "<script id=\"document\" type=\"application/json\">";
  const size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

TEST_F(ReportTest, ThePageLoadsNothingAndHasTheDocumentAsItIs) {
  write("a", "metrics.jsonl",
        line(1, 5, R"(,"loss_by_dataset":{"</script><b>x":3,"\u2028":1e308})") + line(2, 4, R"(,"wps":1e999)"));
  write("b", "metrics.jsonl", line(1, 5.5) + line(2, 4.4));
  const std::string a = write("a", "config.yaml", "model: {preset: \"a<b\"}\ntraining: {steps: 2, seed: 1}\n");
  write("b", "events.jsonl",
        "{\"event\":\"rollback\",\"step\":1,\"text\":\"back to <!--<script>&amp;\\u2028 after step 1\"}\n");
  const std::vector<RunRecords> runs{read_run(a), read_run(root_ / "b")};
  const std::string page = report_page(runs, group_runs(runs));
  EXPECT_FALSE(std::regex_search(page, std::regex("https?:|src=|@import|url\\(['\"]?[^#]")));
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  EXPECT_EQ(page.find("{{"), std::string::npos);
  EXPECT_NE(page.find(kReportPage.mark), std::string::npos);
  const nlohmann::json document = document_of(page);
  EXPECT_EQ(document["lines"][0]["metrics"]["loss_by_dataset/</script><b>x"]["y"], (std::vector<double>{3}));
  EXPECT_EQ(document["lines"][0]["metrics"]["loss_by_dataset/\u2028"]["y"], (std::vector<double>{1e308}));
  EXPECT_EQ(document["runs"][0]["config"]["model.preset"], "a<b");
  EXPECT_EQ(document["runs"][1]["events"][0]["text"], "back to <!--<script>&amp;\u2028 after step 1");
}

TEST_F(ReportTest, TheDocumentHasMetricsThatHaveChartsAndTheirSummaries) {
  std::string lines;
  for (int step = 1; step <= 5000; ++step)
    lines += line(step, step == 4321 ? 0.5 : 2, fmt::format(",\"tokens\":{},\"odd\":1", 10 * step));
  write("long", "metrics.jsonl", lines);
  std::string events = event_json({.kind = EventKind::kRestart, .step = 1, .text = "resuming"}) + "\n";
  for (size_t i = 0; i < kMaxEvents + 3; ++i)
    events += event_json({.kind = EventKind::kCheckpoint, .step = static_cast<int64_t>(i + 1), .text = "saved"}) + "\n";
  write("long", "events.jsonl", events);
  write("short", "metrics.jsonl", line(1, 3) + line(2, 3, ",\"validation_loss\":1e-310"));
  const std::vector<RunRecords> runs{read_run(root_ / "long"), read_run(root_ / "short")};
  const nlohmann::json document = report_document(runs, group_runs(runs));
  const nlohmann::json& first = document["runs"][0];
  EXPECT_EQ(document["lines"][0]["metrics"]["loss"]["y"][0], 2);
  EXPECT_LE(document["lines"][0]["metrics"]["loss"]["x"].size(), kMaxPoints);
  EXPECT_TRUE(document["lines"][0]["metrics"]["loss"].contains("mean"));
  EXPECT_FALSE(document["lines"][0]["metrics"]["wps"].contains("mean"));
  EXPECT_FALSE(document["lines"][0]["metrics"].contains("odd"));
  EXPECT_FALSE(document["lines"][0]["metrics"].contains("loss_gap"));
  EXPECT_EQ(first["summary"]["loss"]["least"], (nlohmann::json{{"x", 4321}, {"y", 0.5}}));
  EXPECT_EQ(first["summary"]["tokens"]["last"], 50'000);
  EXPECT_EQ(first["axes"]["tokens"]["x"].back(), 5000);
  EXPECT_EQ(first["axes"]["tokens"]["y"].back(), 50'000);
  EXPECT_FALSE(first["axes"].contains("wall_s"));
  EXPECT_EQ(document["reload_s"], 0);
  EXPECT_EQ(report_document(runs, group_runs(runs), 30)["reload_s"], 30);
  EXPECT_EQ(first["counts"]["checkpoint"], kMaxEvents + 3);
  ASSERT_EQ(first["events"].size(), kMaxEvents + 1);
  EXPECT_EQ(first["events"][0]["kind"], "restart");
  EXPECT_EQ(first["events"][1]["step"], 4);  // The oldest three checkpoints are omitted.
  EXPECT_EQ(document["lines"][1]["metrics"]["loss_gap"]["y"], (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(document["lines"][1]["metrics"]["validation_loss"]["y"][0], 1e-310);
  EXPECT_EQ(document["charts"][0]["metric"], "loss");
}

TEST_F(ReportTest, RunsThatDifferInSeedsAreALineWithABand) {
  const auto run = [&](const std::string& name, int seed, double lr, const std::string& losses) {
    write(name, "config.yaml",
          fmt::format("training: {{seed: {0}}}\ndata: {{seed: {0}}}\nlogging: {{dir: {1}}}\n"
                      "optimizer: {{lr: {2}}}\n",
                      seed, name, lr));
    return read_run(write(name, "metrics.jsonl", losses));
  };
  const std::string validated = ",\"validation_loss\":2";
  const std::vector<RunRecords> runs{
      run("a", 1, 0.1, line(1, 5) + line(2, 4, validated)), run("b", 1, 0.2, line(1, 9) + line(2, 8)),
      run("c", 2, 0.1, line(1, 3) + line(2, 3, validated) + line(3, 1)),
      read_run(write("d", "metrics.jsonl", line(1, 5))), read_run(write("e", "metrics.jsonl", line(1, 5)))};
  const std::vector<RunGroup> groups = group_runs(runs);
  EXPECT_EQ(groups, (std::vector<RunGroup>{{0, 2}, {1}, {3}, {4}})) << "runs without a config are told apart";
  EXPECT_EQ(group_name(runs, groups[0]), "a and 1 other seed");
  const nlohmann::json lines = report_document(runs, groups)["lines"];
  const nlohmann::json& mean = lines[0]["metrics"]["loss"];
  EXPECT_EQ(mean["x"], (std::vector<int>{1, 2})) << "only steps that all runs have";
  EXPECT_EQ(mean["y"], (std::vector<double>{4, 3.5}));
  EXPECT_EQ(mean["low"], (std::vector<double>{3, 3}));
  EXPECT_EQ(mean["high"], (std::vector<double>{5, 4}));
  EXPECT_FALSE(lines[0]["metrics"].contains("loss_gap"));
  EXPECT_EQ(lines[1]["metrics"]["loss_gap"]["y"][0], 1.25) << "to the mean of the first line";
  EXPECT_FALSE(lines[1]["metrics"]["loss"].contains("low"));
  const std::string table = comparison_table(runs, groups);
  EXPECT_EQ(table.substr(0, table.find('d', table.find("0.2"))),
            "run                 steps  optimizer.lr             loss       least loss  validation loss  least "
            "validation loss\n"
            "a and 1 other seed      2           0.1  3.5000 ± 0.7071  3.5000 ± 0.7071  2.0000 ± 0.0000        2.0000 "
            "± 0.0000\n"
            "b                       2           0.2           8.0000           8.0000                -                "
            "      -\n");
  const std::vector<RunRecords> again{runs[0], runs[0]};
  EXPECT_EQ(group_runs(again).size(), 2) << "the same seeds";
  const std::string csv = comparison_csv(runs, groups);
  const std::string dir = root_ / "c";
  expect_mentions(csv, {"least_validation_loss,data.seed,optimizer.lr,training.seed\n",
                        fmt::format("c,{},1,3,1,1,2,2,2,0.1,2\n", dir), ",,,-,-,-\n"});
}

TEST_F(ReportTest, ARunThatLostItsLossHasNoLastLoss) {
  const RunRecords run = read_run(write("a", "metrics.jsonl", line(1, 5) + "{\"step\":2,\"loss\":null}\n"));
  EXPECT_NE(comparison_csv({&run, 1}, group_runs({&run, 1})).find(",1,2,,5,"), std::string::npos);
}

TEST_F(ReportTest, CellsOfTheTableAreQuoted) {
  write("a", "config.yaml", "data: {train: [{path: \"a,\\\"b\"}]}\n");
  write("b", "config.yaml", "data: {train: [{path: c}]}\n");
  const std::vector<RunRecords> runs{read_run(write("a", "metrics.jsonl", line(1, 5))),
                                     read_run(write("b", "metrics.jsonl", line(1, 5)))};
  expect_mentions(comparison_csv(runs, group_runs(runs)), {",\"[{path: a,\"\"b}]\"\n", ",[{path: c}]\n"});
}

TEST(Page, TheDocumentNeverEndsItsElement) {
  const nlohmann::json hostile = {
      {"</script>", "<!-- \u2028 \xff"}, {"nan", NAN}, {"infinite", INFINITY}, {"most", 1.7e308}};
  const nlohmann::json read = document_of(html_page("Page - test", {"elements"}, hostile));
  EXPECT_EQ(
      read,
      (nlohmann::json{
          {"</script>", "<!-- \u2028 \xef\xbf\xbd"}, {"nan", nullptr}, {"infinite", nullptr}, {"most", 1.7e308}}));
}

}  // namespace
}  // namespace octavo
