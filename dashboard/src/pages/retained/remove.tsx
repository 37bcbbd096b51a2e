import { useState } from "preact/hooks";
import { api, part } from "../../api";
import { Dialog, confirm } from "../../components/dialog";
import { Form } from "../../components/form";
import { toast } from "../../components/toast";
import { number } from "../../format";
import { texts as all } from "../../texts/retained";

const texts = all.remove;

interface Deleted {
  count: number;
}

export async function removeOne(topic: string): Promise<boolean> {
  const done = await confirm({
    title: texts.title,
    hits: [topic],
    text: texts.text,
    action: texts.one,
    work: () => api.del(`/retained/${part(topic)}`),
  });
  if (done) toast(texts.done);
  return done;
}

/** Asks for a filter and counts; only then asks whether to delete. */
export function DeleteDialog(props: { filter: string; onClose: (done: boolean) => void }) {
  const [none, setNone] = useState(false);
  const remove = async (filter: string, count: string): Promise<void> => {
    let gone = 0;
    const done = await confirm({
      title: texts.manyTitle(count),
      hits: [filter],
      text: texts.text,
      action: texts.action(count),
      work: async () => {
        gone = (await api.del<Deleted>(`/retained/${part(filter)}`)).count;
      },
    });
    if (done) toast(texts.manyDone(number(gone)));
    props.onClose(done);
  };
  return (
    <Dialog title={texts.many} onClose={() => props.onClose(false)}>
      <Form
        fields={[{ name: "filter", type: "text", title: texts.filter, description: texts.about, required: true }]}
        values={{ filter: props.filter }}
        submit={texts.count}
        onCancel={() => props.onClose(false)}
        onChange={() => setNone(false)}
        onSubmit={async ({ filter }) => {
          const text = String(filter);
          const { count } = await api.del<Deleted>(`/retained/${part(text)}`, { dry_run: true });
          if (count === 0) setNone(true);
          else void remove(text, number(count));
        }}
      >
        {none && (
          <p role="status">
            <strong>{texts.none}</strong>
          </p>
        )}
      </Form>
    </Dialog>
  );
}
