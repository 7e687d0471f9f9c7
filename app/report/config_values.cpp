#include "app/report/config_values.h"

#include "app/config/config_node.h"
#include "core/error.h"
#include "core/files/input_file.h"

namespace octavo {

namespace {

std::string in_one_line(const ConfigNode& node) {
  std::string text;
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return "null";
    case ConfigNode::Kind::kScalar:
      return node.text.empty() ? "\"\"" : node.text;
    case ConfigNode::Kind::kList:
      for (const ConfigNode& child : node.children) text += (text.empty() ? "" : ", ") + in_one_line(child);
      return "[" + text + "]";
    case ConfigNode::Kind::kMap:
      for (size_t i = 0; i < node.children.size(); ++i) {
        text += fmt::format("{}{}: {}", i == 0 ? "" : ", ", node.keys[i], in_one_line(node.children[i]));
      }
      return "{" + text + "}";
  }
  return text;
}

void add_values(const ConfigNode& map, const std::string& prefix, std::map<std::string, std::string>& values) {
  for (size_t i = 0; i < map.children.size(); ++i) {
    const std::string key = prefix + map.keys[i];
    if (map.children[i].kind == ConfigNode::Kind::kMap) {
      add_values(map.children[i], key + ".", values);
    } else {
      values[key] = in_one_line(map.children[i]);
    }
  }
}

}  // namespace

std::map<std::string, std::string> read_config_values(const std::string& dir) {
  std::map<std::string, std::string> values;
  const std::string path = dir + "/config.yaml";
  if (path_exists(path)) add_values(node_from_file(path), "", values);
  return values;
}

}  // namespace octavo
