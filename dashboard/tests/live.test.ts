import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { FrameReader, LiveStream, liveState, waitBefore } from "../src/live";

describe("frames", () => {
  it("are read whatever pieces they come in", () => {
    const text = ": hello\n\nevent: figures\ndata: {\"a\":1}\n\ndata: x\ndata: y\r\n\r\nevent: none\n\n";
    const whole = new FrameReader().feed(text);
    expect(whole).toEqual([
      { event: "figures", data: '{"a":1}' },
      { event: "message", data: "x\ny" },
    ]);
    for (let size = 1; size < 9; size += 1) {
      const reader = new FrameReader();
      const found = [];
      for (let at = 0; at < text.length; at += size) found.push(...reader.feed(text.slice(at, at + size)));
      expect(found).toEqual(whole);
    }
  });
});

describe("the wait before the next try", () => {
  it("grows to ten seconds", () => {
    expect(waitBefore(0, 0.5)).toBe(500);
    expect(waitBefore(3, 0.5)).toBe(4000);
    expect(waitBefore(30, 0.5)).toBe(10_000);
    expect(waitBefore(30, 1)).toBe(12_500);
  });
});

describe("a stream", () => {
  let streams: ReadableStreamDefaultController<Uint8Array>[] = [];
  let refuse = false;
  const asked: { url: string; init: RequestInit }[] = [];
  const say = (text: string): void => streams.at(-1)?.enqueue(new TextEncoder().encode(text));

  beforeEach(() => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    vi.spyOn(Math, "random").mockReturnValue(0.5);
    vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
      asked.push({ url, init });
      if (refuse) return Promise.reject(new TypeError("Failed to fetch"));
      const body = new ReadableStream<Uint8Array>({
        start(controller) {
          streams.push(controller);
          init.signal?.addEventListener("abort", () => controller.error(new DOMException("aborted", "AbortError")));
        },
      });
      return Promise.resolve(new Response(body));
    });
  });

  afterEach(() => {
    vi.useRealTimers();
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
    streams = [];
    asked.length = 0;
    refuse = false;
  });

  it("gives events to who asked, with our header, and ends with the page", async () => {
    const seen: unknown[] = [];
    const stream = new LiveStream({ figures: 1 }, { figures: (data: unknown) => seen.push(data) });
    await vi.waitFor(() => expect(liveState.value).toBe("open"));
    say('event: figures\ndata: {"at":1}\n\nevent: alarms\ndata: {}\n\n');
    await vi.waitFor(() => expect(seen).toEqual([{ at: 1 }]));
    expect(asked[0]?.url).toBe("/api/v4/live?figures=1");
    expect(asked[0]?.init.headers).toMatchObject({ "X-Taipan-Dashboard": "1" });
    stream.close();
    expect(liveState.value).toBe("off");
    expect(asked[0]?.init.signal?.aborted).toBe(true);
  });

  it("is opened again after it has ended, later and later while nobody answers", async () => {
    const stream = new LiveStream({}, {});
    await vi.waitFor(() => expect(liveState.value).toBe("open"));
    refuse = true;
    streams[0]?.close();
    await vi.waitFor(() => expect(liveState.value).toBe("waiting"));
    expect(asked.length).toBe(1);
    await vi.advanceTimersByTimeAsync(700);
    expect(asked.length).toBe(2);
    await vi.advanceTimersByTimeAsync(700);
    expect(asked.length).toBe(2);
    refuse = false;
    await vi.advanceTimersByTimeAsync(700);
    expect(asked.length).toBe(3);
    await vi.waitFor(() => expect(liveState.value).toBe("open"));
    stream.close();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(asked.length).toBe(3);
  });

  it("is opened again where nothing comes for long", async () => {
    const stream = new LiveStream({}, {});
    await vi.waitFor(() => expect(liveState.value).toBe("open"));
    await vi.advanceTimersByTimeAsync(39_000);
    say(": still here\n\n");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(asked[0]?.init.signal?.aborted).toBe(false);
    await vi.advanceTimersByTimeAsync(41_000);
    expect(asked[0]?.init.signal?.aborted).toBe(true);
    await vi.advanceTimersByTimeAsync(1_000);
    expect(asked.length).toBe(2);
    stream.close();
  });
});
