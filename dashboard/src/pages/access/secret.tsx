import { Dialog } from "../../components/dialog";
import { toast } from "../../components/toast";
import { texts } from "../../texts/access";

/** Whose secret it is. */
export interface Shown {
  name: string;
  secret: string;
}

/** A secret that the node shows once. */
export function Secret({ title, secret, onClose }: { title: string; secret: string; onClose: () => void }) {
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(secret);
    toast(texts.users.copied);
  };
  return (
    <Dialog title={title}>
      <p>{texts.users.secretText}</p>
      <p>
        <code class="secret">{secret}</code>
      </p>
      <footer>
        {"clipboard" in navigator && (
          <button type="button" onClick={() => void copy()}>
            {texts.users.copy}
          </button>
        )}
        <button type="button" class="primary" onClick={onClose}>
          {texts.users.done}
        </button>
      </footer>
    </Dialog>
  );
}
