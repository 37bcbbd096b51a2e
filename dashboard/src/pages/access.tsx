import { PageHead } from "../components/basic";
import { texts } from "../texts/common";

export default function Page() {
  return <PageHead title={texts.pages.access} />;
}
