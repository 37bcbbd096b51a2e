/** The shell: navigation, the page that is open, login, what is said over all pages. */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError, away, forgetMissing, missingNodes, returned } from "./api";
import { PageHead } from "./components/basic";
import { Boundary, ErrorPanel, messageOf } from "./components/error";
import { ConfirmHost, Dialog } from "./components/dialog";
import { Icon, Logo } from "./components/icons";
import { Name } from "./components/name";
import { Toasts, toast, toastError } from "./components/toast";
import { reading, useReading } from "./hooks";
import { SEARCH_KEY, helpOpen, pageKeys, searchOpen } from "./keys";
import { LANGUAGES, chooseLanguage, chosenLanguage } from "./language";
import { liveState } from "./live";
import { link, pageName, place } from "./router";
import { loadPage, pageOf, pages } from "./routes";
import { type OpenId, expired, findOpenId, findOut, forget, leave, logIn, logOut, login, refused } from "./session";
import { texts } from "./texts/common";
import { type Theme, theme } from "./theme";

function Page() {
  const name = pageName.value;
  const route = pages.find((one) => one.name === name);
  const [, setCount] = useState(0);
  const [failed, setFailed] = useState<string | undefined>(undefined);
  const Found = pageOf(name);

  useLayoutEffect(() => {
    if (pageOf(name)) return;
    setFailed(undefined);
    loadPage(name).then(
      () => setCount((count) => count + 1),
      () => setFailed(name),
    );
  }, [name, returned.value]);

  useEffect(() => {
    document.title = route ? `${texts.pages[route.name]} · ${texts.product}` : texts.product;
  }, [route]);

  if (!route) {
    return (
      <div class="empty">
        <h1>{texts.notFound.title}</h1>
        <p>
          <Name text={texts.notFound.text(`#/${place.value.path.join("/")}`)} />
        </p>
        <a href={link(["overview"])}>{texts.notFound.back}</a>
      </div>
    );
  }
  if (failed === name) return <ErrorPanel error={new Error(texts.errors.chunk)} retry={() => location.reload()} />;
  if (!Found) return <Awaited title={texts.pages[route.name]} />;
  return (
    <Boundary key={name}>
      <Found />
    </Boundary>
  );
}

/** The program of a page comes. */
function Awaited({ title }: { title: string }) {
  useReading(true);
  return <PageHead title={title} />;
}

/** A line at the top while something is awaited that is not there yet. */
function Reading() {
  return reading.value > 0 ? (
    <p class="reading" role="status">
      {texts.table.loading}
    </p>
  ) : null;
}

function Sidebar() {
  const open = useSignal(false);
  const current = pageName.value;
  useEffect(() => {
    open.value = false;
  }, [place.value]);
  return (
    <aside class={open.value ? "side open" : "side"}>
      <div class="brand">
        <a href={link(["overview"])}>
          <Logo size={26} />
          {texts.product}
        </a>
        <button type="button" class="menu" aria-expanded={open.value} aria-controls="pages" onClick={() => (open.value = !open.value)}>
          {texts.menu}
        </button>
      </div>
      <div class="side-rest" id="pages">
        <button type="button" class="search-all" onClick={() => (searchOpen.value = true)}>
          <Icon name="search" />
          {texts.search.button} <kbd>{SEARCH_KEY}</kbd>
        </button>
        <nav aria-label={texts.nav}>
          {pages.map((page) => (
            <a key={page.name} href={link([page.name])} aria-current={page.name === current ? "page" : undefined} title={`g ${page.key}`}>
              <Icon name={page.name} />
              {texts.pages[page.name]}
            </a>
          ))}
        </nav>
        <Foot />
      </div>
    </aside>
  );
}

function Foot() {
  const user = login.value;
  return (
    <div class="foot">
      {user && (
        <p>
          <Name text={user.username} max={24} />
          <span class="faint small"> {texts.user.roles[user.role] ?? user.role}</span>
        </p>
      )}
      <label class="theme">
        <span class="sr">{texts.theme.label}</span>
        <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
          <option value="system">{texts.theme.system}</option>
          <option value="light">{texts.theme.light}</option>
          <option value="dark">{texts.theme.dark}</option>
        </select>
      </label>
      <LanguageChoice />
      <div class="foot-row">
        <button type="button" class="small" onClick={() => (helpOpen.value = true)}>
          {texts.keys.button} <kbd>?</kbd>
        </button>
        <button type="button" class="small" onClick={() => void logOut().catch(toastError)}>
          {texts.user.logout}
        </button>
      </div>
      <p class={`live ${liveState.value}`} role="status">
        {texts.live[liveState.value]}
      </p>
    </div>
  );
}

/** Also for who has not logged in yet. The page is loaded again. */
function LanguageChoice() {
  return (
    <label class="theme">
      <span class="sr">{texts.language.label}</span>
      <select value={chosenLanguage ?? ""} onChange={(event) => chooseLanguage(event.currentTarget.value)}>
        <option value="">{texts.language.system}</option>
        {Object.entries(LANGUAGES).map(([name, title]) => (
          <option key={name} value={name} lang={name}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
}

function Help() {
  if (!helpOpen.value) return null;
  const row = (keys: string[], title: string) => (
    <div key={title}>
      <dt>
        {keys.map((key, index) => (
          <>
            {index > 0 && ` ${texts.keys.then} `}
            <kbd>{key}</kbd>
          </>
        ))}
      </dt>
      <dd>{title}</dd>
    </div>
  );
  return (
    <Dialog title={texts.keys.title} onClose={() => (helpOpen.value = false)}>
      <dl class="facts keys">
        {row(["?"], texts.keys.help)}
        {row(["/"], texts.keys.search)}
        {row([SEARCH_KEY], texts.search.title)}
        {row(["Esc"], texts.keys.close)}
        {pageKeys.value.map((one) => row([one.key], one.title))}
        {pages.map((page) => row(["g", page.key], texts.keys.goTo(texts.pages[page.name])))}
      </dl>
    </Dialog>
  );
}

type Everything = typeof import("./search/dialog").default;

function Everything() {
  const [Found, setFound] = useState<Everything | undefined>(undefined);
  const open = searchOpen.value;
  useEffect(() => {
    if (!open || Found) return;
    import("./search/dialog").then(
      (program) => setFound(() => program.default),
      () => {
        searchOpen.value = false;
        toastError(new Error(texts.errors.chunk));
      },
    );
  }, [open, Found]);
  return open && Found ? <Found onClose={() => (searchOpen.value = false)} /> : null;
}

function LoginForm({ username: known }: { username?: string | undefined }) {
  const [wrong, setWrong] = useState<string | undefined>(undefined);
  const [busy, setBusy] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  const secret = useRef<HTMLInputElement>(null);
  useEffect(() => (known ? secret : field).current?.focus(), []);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setWrong(undefined);
    try {
      await logIn(field.current?.value ?? "", secret.current?.value ?? "");
    } catch (error) {
      setWrong(error instanceof ApiError && error.status === 401 ? texts.login.wrong : messageOf(error));
      setBusy(false);
      secret.current?.select();
    }
  };
  return (
    <form class="form" onSubmit={(event) => void submit(event)}>
      <div class="field">
        <label class="field-title" htmlFor="login-name">
          {texts.login.username}
        </label>
        <input id="login-name" name="username" ref={field} defaultValue={known ?? ""} autocomplete="username" spellcheck={false} required />
      </div>
      <div class="field">
        <label class="field-title" htmlFor="login-secret">
          {texts.login.password}
        </label>
        <input id="login-secret" name="password" ref={secret} type="password" autocomplete="current-password" autofocus={Boolean(known)} required />
      </div>
      {wrong && (
        <p class="wrong" role="alert">
          {wrong}
        </p>
      )}
      <footer>
        <button type="submit" class="primary" disabled={busy}>
          {busy ? texts.form.busy : texts.login.button}
        </button>
      </footer>
    </form>
  );
}

/** `tab`: the page stays, with what is typed, and continues when another tab has logged in. */
function OpenIdLogin({ tab = false }: { tab?: boolean }) {
  const [found, setFound] = useState<OpenId | undefined>(undefined);
  useEffect(() => {
    // Without an answer, the form remains.
    findOpenId().then(setFound, () => undefined);
  }, []);
  const reason = refused.value;
  return (
    <>
      {reason !== undefined && (
        <p class="wrong" role="alert">
          {(Object.hasOwn(texts.login.openidReasons, reason) && texts.login.openidReasons[reason]) || texts.login.openidFailed}
        </p>
      )}
      {found && (
        <a class="button openid" href={found.url} target={tab ? "_blank" : undefined} onClick={tab ? undefined : leave}>
          {found.label || texts.login.openid}
        </a>
      )}
      {found && tab && <p class="faint small">{texts.login.openidTab}</p>}
    </>
  );
}

function LoginView() {
  return (
    <main class="login" id="content">
      <div class="login-box">
        <Logo size={44} />
        <h1>{texts.product}</h1>
        <LoginForm />
        <OpenIdLogin />
        <p class="faint small">{texts.login.hint}</p>
        <LanguageChoice />
      </div>
    </main>
  );
}

function AwayBanner() {
  return away.value ? (
    <div class="banner" role="alert">
      <strong>{texts.away.title}</strong> {texts.away.text}
    </div>
  ) : null;
}

function MissingBanner() {
  const nodes = missingNodes.value;
  return nodes.length > 0 ? (
    <div class="banner" role="status">
      <strong>{texts.missing.title}</strong>{" "}
      {nodes.map((node) => (
        <>
          <Name text={node} />{" "}
        </>
      ))}
      {texts.missing.text}
    </div>
  ) : null;
}

/** While the node is away it is asked, more and more seldom, until it answers. */
function useReturn(): void {
  const gone = away.value;
  useEffect(() => {
    if (!gone) return;
    let wait = 500;
    let timer: ReturnType<typeof setTimeout>;
    const ask = (): void => {
      timer = setTimeout(() => {
        void findOutWhetherBack().then((back) => {
          if (back) toast(texts.away.back);
          else ask();
        });
        wait = Math.min(wait * 1.6, 10_000);
      }, wait);
    };
    ask();
    return () => clearTimeout(timer);
  }, [gone]);
}

async function findOutWhetherBack(): Promise<boolean> {
  // Sessions may be gone with the node's restart: then the page stays and asks.
  try {
    await findOut();
  } catch {
    return !away.value;
  }
  return true;
}

export function App() {
  const main = useRef<HTMLElement>(null);
  const name = pageName.value;
  const first = useRef(true);
  useReturn();
  // A new page begins at its head for a screen reader, too.
  useEffect(() => {
    if (first.current) first.current = false;
    else {
      forgetMissing();
      main.current?.focus({ preventScroll: true });
    }
  }, [name]);

  const user = login.value;
  if (user === undefined) {
    return (
      <>
        {away.value && <p class="banner">{texts.login.away}</p>}
        <Toasts />
      </>
    );
  }
  if (user === null) {
    return (
      <>
        <AwayBanner />
        <LoginView />
        <Toasts />
      </>
    );
  }
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        {texts.skip}
      </a>
      <Reading />
      <div class="shell">
        <Sidebar />
        <main id="content" ref={main} tabIndex={-1}>
          <AwayBanner />
          <MissingBanner />
          <Page />
        </main>
      </div>
      <Help />
      <Everything />
      <ConfirmHost />
      {expired.value && (
        <Dialog title={texts.login.again}>
          <p>{texts.login.expired}</p>
          <LoginForm username={user.openid ? undefined : user.username} />
          <OpenIdLogin tab />
          <button type="button" class="small" onClick={forget}>
            {texts.login.other}
          </button>
        </Dialog>
      )}
      <Toasts />
    </>
  );
}
