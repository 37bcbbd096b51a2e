import { Search } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { useTyped } from "../../hooks";
import { texts } from "../../texts/clients";
import { RefusedTable, useRefused } from "../clients/refused";

/** Who was refused last when it connected. */
export function RefusedClients() {
  const { data, error, reload } = useRefused();
  const search = useTyped("client");
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return null;
  return <RefusedTable rows={data} search={search.value} tools={<Search label={texts.refused.search} {...search} />} />;
}
