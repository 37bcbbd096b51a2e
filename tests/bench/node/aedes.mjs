// aedes behind a plain TCP server: node aedes.mjs PORT
import { createServer } from "node:net";
import aedes from "aedes";

const broker = aedes({ concurrency: 10000, maxClientsIdLength: 200, queueLimit: 1000 });
const server = createServer({ noDelay: true }, broker.handle);
server.listen({ port: Number(process.argv[2]), host: "127.0.0.1", backlog: 4096 });
process.once("SIGTERM", () => process.exit(0));
