// aedes behind a plain TCP server: node aedes.mjs PORT
import { createServer } from "node:net";
import { Aedes } from "aedes";

const broker = await Aedes.createBroker();
const server = createServer({ noDelay: true }, broker.handle);
server.listen({ port: Number(process.argv[2]), host: "127.0.0.1", backlog: 4096 });
process.once("SIGTERM", () => process.exit(0));
