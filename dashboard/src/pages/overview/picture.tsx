/** The cluster as a picture: each node with its clients and its messages, and the links between the nodes. */

import { compact, rate } from "../../format";
import { nameText } from "../../components/name";
import { type NodeLink, ageOf, stateOf, toneOf } from "../../links";
import { link } from "../../router";
import type { Series } from "../../series";
import { texts } from "../../texts/overview";
import { type Spot, between, spots } from "./spots";

const WIDTH = 680;
const HEIGHT = 340;
const BOX = { width: 168, height: 66 };
/** So many nodes have room for the figures of each link; for more of them the table has these. */
const WITH_FIGURES = 4;

export interface Drawn {
  name: string;
  status: string;
  connections: number | undefined;
  series: Series | undefined;
}

/** `running`: both nodes. One that does not answer reports nothing about its links, so `known` is undefined. */
function Arrow({ from, to, known, running, figures }: { from: Spot; to: Spot; known: NodeLink | undefined; running: boolean; figures: boolean }) {
  const tone = known === undefined || !running ? "bad" : toneOf(known);
  const words = texts.picture;
  const waits = known !== undefined && known.waiting > 0 && tone !== "good";
  const { begin, end, text } = between(from, to, BOX, waits ? 2 : 1);
  return (
    <g class={`picture-link ${tone}`}>
      {known && (
        <title>{words.link(nameText(known.node), nameText(known.to), stateOf(known), rate(known.rate), compact(known.waiting), ageOf(known))}</title>
      )}
      <line x1={begin.x} y1={begin.y} x2={end.x} y2={end.y} marker-end={`url(#arrow-${tone})`} />
      {figures && known && (
        <text x={text.x} y={text.y}>
          <tspan>{known.state === "open" ? rate(known.rate) : stateOf(known)}</tspan>
          {waits && (
            <tspan x={text.x} dy="14">
              {words.waiting(compact(known.waiting), ageOf(known))}
            </tspan>
          )}
        </text>
      )}
    </g>
  );
}

export function ClusterPicture({ nodes, links }: { nodes: Drawn[]; links: NodeLink[] | undefined }) {
  const places = spots(nodes.length, WIDTH - BOX.width, HEIGHT - BOX.height).map(({ x, y }) => ({ x: x + BOX.width / 2, y: y + BOX.height / 2 }));
  const at = (index: number): Spot => places[index] ?? { x: 0, y: 0 };
  const words = texts.picture;
  return (
    <figure class="cluster-picture">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label={words.title}>
        <defs>
          {["good", "warn", "bad"].map((tone) => (
            <marker key={tone} id={`arrow-${tone}`} class={tone} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">
              <path d="M0 0 8 4 0 8z" />
            </marker>
          ))}
        </defs>
        {links &&
          nodes.flatMap((one, from) =>
            nodes.map(
              (other, to) =>
                from !== to && (
                  <Arrow
                    key={`${one.name} ${other.name}`}
                    from={at(from)}
                    to={at(to)}
                    known={links.find((each) => each.node === one.name && each.to === other.name)}
                    running={one.status === "Running" && other.status === "Running"}
                    figures={nodes.length <= WITH_FIGURES}
                  />
                ),
            ),
          )}
        {nodes.map((one, index) => {
          const { x, y } = at(index);
          const running = one.status === "Running";
          return (
            <a key={one.name} href={link(["overview"], { node: one.name })}>
              <title>{nameText(one.name)}</title>
              <rect class={running ? "" : "away"} x={x - BOX.width / 2} y={y - BOX.height / 2} width={BOX.width} height={BOX.height} rx="10" />
              <text class="picture-name" x={x} y={y - 12}>
                {nameText(one.name, 20)}
              </text>
              <text x={x} y={y + 7}>
                {running ? words.clients(one.connections ?? 0, compact(one.connections)) : words.away}
              </text>
              {running && one.series && (
                <text x={x} y={y + 24}>
                  ↓ {rate(one.series.value("messages_received"))} ↑ {rate(one.series.value("messages_sent"))}
                </text>
              )}
            </a>
          );
        })}
      </svg>
      <figcaption class="small">
        <a href={link(["node"])}>{words.links}</a>
      </figcaption>
    </figure>
  );
}
