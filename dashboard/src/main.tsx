import { render } from "preact";
import { away } from "./api";
import { App } from "./app";
import { toastError } from "./components/toast";
import { listenToKeys } from "./keys";
import { loadLanguage } from "./language";
import { pageName } from "./router";
import { loadPage } from "./routes";
import { comeBack, findOut, login, refused, tellTabs } from "./session";
import "./styles.css";

/** Milliseconds that the shell waits for the page of the address, so that both are drawn at once. */
const PATIENCE = 200;

// The page is read beside the question who is logged in. Where that cannot be done, the shell says so when it tries again.
comeBack();
const spoken = loadLanguage();
const page = spoken.then(() => loadPage(pageName.value)).catch(() => undefined);
const patience = new Promise((over) => setTimeout(over, PATIENCE));
findOut(Promise.race([page, patience]))
  .then(() => {
    if (!login.value) return;
    refused.value = undefined;
    tellTabs();
  })
  .catch((error: unknown) => !away.value && toastError(error))
  .finally(async () => {
    await spoken;
    const root = document.getElementById("app");
    if (root) render(<App />, root);
    listenToKeys();
  });
