import type { texts as English } from "../publish";

export const texts: typeof English = {
  title: "发布消息",
  button: "发布",
  done: "消息已发布",
  topic: "主题",
  topicAbout: "不含通配符的主题名，多个主题用逗号分隔。以管理员身份发布，不受访问规则限制。",
  payload: "消息内容",
  encoding: "消息内容格式",
  encodings: { plain: "文本", base64: "Base64" },
  qos: "QoS",
  retain: "保留",
  retainAbout: "节点会为之后的订阅者保留这条消息。消息内容为空时，将删除该主题的保留消息。",
  clientid: "发布者客户端 ID",
  clientidAbout: "规则和订阅者看到的发布者。该客户端不必存在。",
  expiry: "消息过期间隔（秒）",
  contentType: "内容类型",
  responseTopic: "响应主题",
  correlation: "对比数据",
  utf8: "标记消息内容为 UTF-8",
  userProperties: "用户属性",
};
