import { Component, type ComponentChildren } from "preact";
import { ApiError, NodeAway } from "../api";
import { texts } from "../texts/common";
import { Name } from "./name";

/** What went wrong, in the API's own words, and what to do about it. */
export function ErrorPanel({ error, title, retry }: { error: Error; title?: string; retry?: () => void }) {
  const asked = error instanceof ApiError;
  return (
    <div class="panel bad" role="alert">
      <strong>{title ?? texts.errors.load}</strong>
      <p>
        <Name text={error.message} max={600} />
      </p>
      {asked && error.advice && <p>{error.advice}</p>}
      {asked && <p class="faint small">{texts.errors.asked(error.method, error.path, error.status, error.code)}</p>}
      {retry && (
        <button type="button" onClick={retry}>
          {texts.errors.again}
        </button>
      )}
    </div>
  );
}

export function messageOf(error: unknown): string {
  if (error instanceof ApiError) return error.advice ? `${error.message} ${error.advice}` : error.message;
  if (error instanceof NodeAway) return error.message;
  return error instanceof Error ? error.message : String(error);
}

/** Catches what a page throws, so that the rest of the shell lives on. */
export class Boundary extends Component<{ children: ComponentChildren }, { failure?: Error }> {
  static override getDerivedStateFromError(failure: Error): { failure: Error } {
    return { failure };
  }

  override componentDidCatch(failure: Error): void {
    console.error(failure);
  }

  render() {
    if (!this.state.failure) return this.props.children;
    return (
      <div class="panel bad" role="alert">
        <strong>{texts.errors.bug}</strong>
        <p>{this.state.failure.message}</p>
        <button type="button" onClick={() => location.reload()}>
          {texts.errors.reload}
        </button>
      </div>
    );
  }
}
