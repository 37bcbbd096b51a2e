/** The cluster as a picture: each node with its clients and its messages, and which nodes see each other. */

import { compact, rate } from "../../format";
import { nameText } from "../../components/name";
import { link } from "../../router";
import type { Series } from "../../series";
import { texts } from "../../texts/overview";
import { type Spot, spots } from "./spots";

const WIDTH = 640;
const HEIGHT = 300;
const BOX = { width: 168, height: 66 };

export interface Drawn {
  name: string;
  status: string;
  connections: number | undefined;
  series: Series | undefined;
}

function Line({ from, to, open }: { from: Spot; to: Spot; open: boolean }) {
  return <line class={open ? "" : "cut"} x1={from.x} y1={from.y} x2={to.x} y2={to.y} />;
}

export function ClusterPicture({ nodes }: { nodes: Drawn[] }) {
  const places = spots(nodes.length, WIDTH - BOX.width, HEIGHT - BOX.height).map(({ x, y }) => ({ x: x + BOX.width / 2, y: y + BOX.height / 2 }));
  const at = (index: number): Spot => places[index] ?? { x: 0, y: 0 };
  const words = texts.picture;
  return (
    <figure class="cluster-picture">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label={words.title}>
        {nodes.flatMap((one, left) =>
          nodes.slice(left + 1).map((other, offset) => (
            <Line key={`${one.name} ${other.name}`} from={at(left)} to={at(left + 1 + offset)} open={one.status === "Running" && other.status === "Running"} />
          )),
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
                {running ? words.clients(compact(one.connections)) : words.away}
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
    </figure>
  );
}
