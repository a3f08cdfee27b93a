"use strict";
// The page's texts in Chinese, by the English ones; and patterns of what the tools write in English.
const CHINESE = {
  // pages
  Overview: "概览", Accuracy: "精度", Speed: "速度", NaN: "NaN", Memory: "内存", Calls: "调用", Ranks: "各 rank", Comparison: "对比", Conformance: "一致性测试",
  Call: "调用", Results: "结果", Pages: "页面", Run: "运行", report: "报告", key: "按键", "Skip to the content": "跳到正文",
  // words in tables
  op: "算子", what: "内容", wrong: "错误", right: "正确", compared: "已比较", "not compared": "未比较", verdict: "结论", Verdict: "结论", module: "模块",
  line: "代码行", step: "步", Step: "步", steps: "步数", call: "调用", calls: "调用次数", rank: "rank", Rank: "rank", ranks: "rank 数", forward: "前向", backward: "反向",
  recomputed: "重算", collectives: "集合通信", error: "误差", relative: "相对差", cosine: "余弦", shape: "形状", stride: "步长", dtype: "dtype", value: "值", device: "设备", reference: "参考",
  argument: "参数", result: "结果", time: "时间", share: "占比", each: "每次", times: "次数", idle: "空闲", why: "原因", tool: "工具", command: "命令", folder: "目录",
  host: "主机", started: "开始", took: "用时", status: "状态", kind: "类型", message: "信息", case: "用例", cases: "用例数", where: "位置", runs: "运行", inputs: "输入", phase: "阶段",
  guilty: "有罪", apart: "相差", role: "角色", layer: "层", all: "全部", allocator: "分配器", language: "语言", live: "实时", ended: "已结束",
  passed: "通过", failure: "失败", skipped: "跳过", crash: "崩溃", timeout: "超时", flaky: "不稳定",
  unsupported: "不支持", generator: "样本生成失败", redirect: "重定向问题", harness: "测试框架问题",
  "1 call": "1 次调用", "{0} calls": "{0} 次调用", "1 op": "1 个算子", "{0} ops": "{0} 个算子", "outside of modules": "模块之外", "all {0}": "全部 {0} 项",
  "step {0}": "第 {0} 步", "rank {0}": "rank {0}", "ranks {0}": "rank {0}", "step {0}, call {1}": "第 {0} 步，调用 {1}", "{0} of {1}": "{1}中的 {0} 次",
  // overview
  "The first NaN or Inf": "第一个 NaN 或 Inf", "Computes wrong results": "计算结果错误", "first seen": "首次出现", "Look at this call": "查看这次调用", "All that is wrong": "全部错误",
  "{0}, {1}, in step {2}; {3} of this kind.": "{0}，{1}，第 {2} 步；同类共 {3}。", "{0} further off than its dtype allows": "误差是该 dtype 所允许的 {0}",
  "Its {0} is wrong in {1}, {2}.": "其 {0} 在 {1}中出错，{2}。", "whatever is allowed": "无论允许多少",
  "{0} were compared with a reference: all are as right as their dtype allows.": "{0}与参考进行了比较：全部达到其 dtype 允许的精度。",
  "{0} were looked at: none made NaN or Inf.": "检查了 {0}：没有产生 NaN 或 Inf。", "Nothing was checked for errors in this run.": "本次运行没有检查错误。",
  "Nothing wrong was found": "没有发现错误", "{0} were recorded": "记录了 {0}", "wrong calls": "错误调用", "time in ops": "算子用时", "device idle": "设备空闲", "memory peak": "内存峰值",
  "Wrong, the worst first": "错误，最严重的在前", "off by": "偏差", "Where the time goes": "时间花在哪里", "Not looked at": "没有检查的", "What to type next": "接下来可运行的命令",
  "About this run": "关于本次运行", "with changes": "有改动", "ended with": "结束方式", "signal {0}": "信号 {0}", "exit code {0}": "退出码 {0}", "this page": "本页生成于",
  "This file has no run, only results of other commands.": "此文件没有运行记录，只有其他命令的结果。",
  // accuracy
  "No call was compared with a reference in this run.": "本次运行没有与参考比较。", "Wrong places in the program, the worst first": "程序中出错的位置，最严重的在前",
  "Error against what is allowed, op by op": "各算子的误差与允许值之比", "{0} of {1} were compared; all are as right as their dtype allows.": "比较了 {1}的 {0}；全部达到其 dtype 允许的精度。",
  "{0} of {1} compared calls are wrong, all of {2}. An error of 1× is all that the dtype allows.": "已比较的 {1} 次调用中有 {0} 次错误，来自 {2}。误差 1× 即 dtype 允许的上限。",
  "Where in the model": "在模型中的位置", Forward: "前向", Backward: "反向", "{0} of what is allowed": "允许值的 {0}", "worst error": "最大误差",
  "as the reference": "与参考一致", "within the allowance": "在允许范围内", "at its edge": "接近上限", "10,000 times too far": "超出一万倍",
  "Modules, each given the other run's inputs: its own error": "各模块换上另一次运行的输入：自身误差", "own error": "自身误差", "error of its inputs": "输入的误差", close: "接近", "not close": "不接近",
  // speed
  "No times were measured in this run.": "本次运行没有测量时间。", "Time in ops": "算子用时", "By module and op": "按模块和算子", "Op by op": "各算子", "Time line": "时间线",
  "{0} later events are not drawn; the trace file in the run's folder has them.": "后面的 {0} 个事件没有画出；运行目录的 trace 文件里有。",
  "the host, which was in {0}": "主机，它在执行 {0}", "the host, which was between ops: Python, data, other tools": "主机，它在算子之间：Python、数据、其他工具",
  "something else on the device: a copy, another stream, a collective": "设备上的其他工作：拷贝、另一条流、集合通信", "What the device waited for": "设备在等什么",
  "The device was idle for {0} of {1} ({2}).": "设备在 {1} 中空闲了 {0}（{2}）。", "Tools that compare make the host slow: measure with --time alone.": "比较工具会拖慢主机：测速请只用 --time。",
  "before the op": "在此算子之前", "it waited for": "等待", "Time by module and op": "按模块和算子的时间", "Show all": "显示全部", "Zoom in": "放大", "Zoom out": "缩小",
  "Time line of {0} tracks over {1}; the table of calls has the same times": "{0} 条轨道、{1} 的时间线；调用表有同样的时间",
  "Scroll or pinch to zoom, drag to move, click a call to open it.": "滚动或双指缩放，拖动平移，点击调用可打开。",
  // NaN
  "Nobody looked for NaN and Inf in this run.": "本次运行没有检查 NaN 与 Inf。", "How it spread": "如何扩散", "{0} later calls are not listed.": "后面的 {0} 次调用没有列出。",
  "What made NaN or Inf": "什么产生了 NaN 或 Inf", "The first one": "第一个", "calls it reached": "波及的调用", "Where it went": "扩散到哪里",
  "The stronger the colour, the earlier it was there.": "颜色越强，到达越早。", "reached as number {0}": "第 {0} 个到达", "made it": "产生", "carried it on": "传递", "was given it": "输入中已有",
  // memory
  "Memory was not sampled in this run.": "本次运行没有采样内存。", "Device memory of tensors": "张量占用的设备内存", "Device memory that the allocator holds": "分配器持有的设备内存", "Host memory": "主机内存",
  "CPU, per cent of a core": "CPU，单核百分比", "Device busy, per cent": "设备繁忙百分比", "The most that was used": "使用的最大值", "host memory": "主机内存", "device memory": "设备内存",
  "Device temperature, °C": "设备温度（°C）",
  // watch
  Watch: "监视", "Nothing watched over this run.": "本次运行没有监视。", "{0} alerts in {1} steps.": "{1} 步中有 {0} 次警报。", "No alert in {0} steps.": "{0} 步中没有警报。", "1 alert in {0} steps.": "{0} 步中有 1 次警报。", Alerts: "警报", rule: "规则",
  "Parameters are sharded: each rank shows its own part.": "参数是分片的：每个 rank 显示自己的部分。", Loss: "损失", "Gradient norm": "梯度范数", "Scale of GradScaler": "GradScaler 的缩放因子", "By module": "按模块",
  "Search modules": "搜索模块", figure: "指标", "root mean square": "均方根", "largest absolute value": "最大绝对值", mean: "均值", "share of zeros": "零的占比", "NaN and Inf": "NaN 与 Inf",
  "{0} of {1} modules; the curves are those of the largest.": "{1} 个模块中的 {0} 个；曲线是其中最大的几个。", first: "最初", last: "最后", largest: "最大", elements: "元素数",
  activations: "激活", gradients: "梯度", weights: "权重",
  // calls
  "No calls were recorded one by one in this run.": "本次运行没有逐次记录调用。", "{0} more are in the files of the run": "另有 {0} 次在运行目录的文件里", "Search op, module, line  ( / )": "搜索算子、模块、代码行（ / ）",
  "Search op, module, line": "搜索算子、模块、代码行", "any verdict": "所有结论", "all steps": "所有步", "all ranks": "所有 rank",
  "This file has no such call.": "此文件没有这次调用。", "In the program": "在程序中", "Compared with the reference": "与参考比较", "Arguments and results": "参数与结果", "Statistics of its tensors": "张量统计",
  "Run it again": "再次运行", "call before": "上一次调用", "call after": "下一次调用", "largest difference": "最大差", "wrong elements": "错误元素", "Device against reference": "设备与参考的分布",
  "Histogram of {0}: device and reference": "{0} 的直方图：设备与参考", "Arguments are recorded with --time, tensors with --capture.": "--time 记录参数，--capture 记录张量。",
  "On the device, compared with the CPU:": "在设备上，与 CPU 比较：", "As a small script for the vendor, which needs torch only:": "做成给厂商的小脚本，只需要 torch：",
  "Its tensors were not saved. This saves them, for ditorch replay and ditorch reproduce:": "它的张量没有保存。下面的命令会保存，供 ditorch replay 和 ditorch reproduce 使用：",
  // ranks, comparison, conformance
  "No collective was seen: DistributedDataParallel makes its own in C++, where no tool sees them. Their time is part of the backward pass and of what ops wait for.": "没有看到集合通信：DistributedDataParallel 在 C++ 中发起自己的集合通信，工具看不到。其时间包含在反向传播和算子的等待中。",
  "No process recorded calls in this run.": "本次运行没有进程记录调用。", "{0} of the median": "中位数的 {0}", "Time of ops, rank by rank": "各 rank 的算子时间", "Coloured where a rank takes longer than the median.": "比中位数慢的 rank 着色。",
  "Comparison of two runs": "两次运行的对比", "Give two runs: ditorch report GOOD BAD. With statistics of both, the first call that differs is named:": "给出两次运行：ditorch report GOOD BAD。两者都有统计时，会指出第一个不同的调用：",
  "Both runs need statistics (--capture=statistics) for the first call that differs.": "要找出第一个不同的调用，两次运行都需要统计（--capture=statistics）。", "No divergence": "没有分歧",
  "{0} in {1} steps agree within rounding.": "{1} 步中的 {0}在舍入误差内一致。", "The first call that differs": "第一个不同的调用", "Guilty: its inputs agree within rounding, its results do not.": "有罪：输入在舍入误差内一致，结果不一致。",
  "Not guilty: what it was given differs already.": "无罪：它的输入已经不同。", "results {0}, inputs {1} (relative to their norms)": "结果 {0}，输入 {1}（相对于范数）", "{0} in {1} steps": "{1} 步中的 {0}",
  "Guilty, the first one first": "有罪的，按先后", "How it went on": "之后如何", "Furthest apart": "相差最大", "Whose data would tell most": "最值得抓取数据的", "Modules, in the order in which they ran": "各模块，按运行顺序",
  "same to the bit": "逐位相同", "worst op": "最差算子", "What cannot be compared": "无法比较的", "Op by op: {0} | {1}": "各算子：{0} | {1}",
  "Give the folder of `ditorch conformance run` to `ditorch report`, too.": "把 `ditorch conformance run` 的目录也交给 `ditorch report`。", "Search ops": "搜索算子", "Ops and dtypes: passed of run": "算子与 dtype：通过/运行",
  Causes: "原因", "smallest reproducer": "最小复现", "Cases that did not pass": "没有通过的用例",
  // controls
  "Copy the command": "复制命令", Copy: "复制", Copied: "已复制", "Light colours": "浅色", "Dark colours": "深色", "Keyboard shortcuts": "键盘快捷键", Close: "关闭", "no connection": "没有连接",
  "go to a page": "转到页面", "search calls": "搜索调用", "choose a row of the table in focus": "在当前表格中选行", "open it": "打开", "the call before, the call after": "上一次、下一次调用",
  "zoom and move the time line in focus": "缩放、移动当前时间线", "out of a part of the flame graph": "退出火焰图的局部", "dark or light": "深色或浅色", "this help": "本帮助",
};

// what a verdict says, see op_tools/autocompare/judging/verdict.py
const CHINESE_REASONS = [
  [/off by a factor of (\S+) as a whole; (\S+) more or less is usual/, "整体偏差为 $1 倍，通常的偏差不超过 $2"],
  [/errors are (\S+) times those of (\S+) on the CPU/, "误差是 CPU 上 $2 的 $1 倍"],
  [/errors are (\S+) times what (\S+) costs/, "误差是 $2 应有误差的 $1 倍"],
  [/an error is (\S+) times what (\S+) costs here/, "某个误差是此处 $2 应有误差的 $1 倍"],
  [/; (\S+) % of the elements are wrong, the first at ([^:]+): (\S+) instead of (\S+)/, "；$1 % 的元素错误，第一个在 $2：$3，应为 $4"],
  [/NaN or Inf on one side only, at (\S+) of (\S+) elements, the first at ([^:]+): (\S+) instead of (\S+)/, "$2 个元素中有 $1 个只在一侧为 NaN 或 Inf，第一个在 $3：$4，应为 $5"],
  [/(\S+) % of the elements differ where none may, the first at ([^:]+): (\S+) instead of (\S+)/, "$1 % 的元素不同（一个都不应不同），第一个在 $2：$3，应为 $4"],
  [/made (NaN|Inf) out of finite inputs/, "由有限的输入产生 $1"],
  [/made (NaN|Inf) out of finite gradients/, "由有限的梯度产生 $1"],
  [/was given (NaN|gradients with \w+) that no op made/, "输入中已有 $1，不是算子产生的"],
  [/carried (NaN|Inf) on/, "传递了 $1"],
  [/made (NaN|Inf) out of infinities/, "由无穷产生 $1"],
];
