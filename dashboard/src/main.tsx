import { render } from "preact";
import { App } from "./app";
import { listenToKeys } from "./keys";
import "./styles.css";

const root = document.getElementById("app");
if (root) render(<App />, root);
listenToKeys();
