import { useState } from "preact/hooks";
import { ApiError, call, get, type Json, query, readPages, seg } from "../api";
import { usePoll } from "../live";
import { go, refine, useRoute } from "../route";
import { Act, ask, Card, Empty, JsonCard, Link, Page, Pager, parsed, Table, tell, Text, Time, Trouble, When } from "../ui";

const ROOT = "/admin/schemas";
const MODES: [string, string][] = [
  ["warn", "warn: store the job with a warning"], ["strict", "strict: reject the job"], ["off", "off: don't check arguments"],
];

const register = (type: string | undefined, done: (type: string) => void) => () => ask({
  title: type ? `Register version of ${type}` : "Register schema", button: "Register",
  text: "A registered version can't be changed. It must accept what the previous version with the same first number accepts.",
  questions: [
    ...(type ? [] : [{ name: "type", label: "Job type" }]),
    { name: "version", label: "Version", help: "One to three numbers, for example 1.2.0." },
    { name: "schema", label: "Schema", kind: "json", value: '{\n  "type": "object"\n}', help: "JSON Schema (draft 2020-12)." },
    { name: "compatible_with", label: "Compatible with", help: "Another version to compare with; empty: the previous one." },
  ],
  act: async ({ type: named, version, schema, compatible_with }) => {
    const of = type ?? named!;
    for (const [field, value] of [["type", of], ["version", version]] as const) if (!value) throw new ApiError(0, `${field} is required`, "", { field, reason: "is required" });
    await call("PUT", `${ROOT}/${seg(of)}/${seg(version!)}`, { schema: parsed(schema!, "schema"), ...(compatible_with && { compatible_with }) }).catch((thrown: ApiError) => {
      const changes: Json[] = thrown.details?.breaking_changes ?? [];
      throw changes.length ? new ApiError(thrown.status, thrown.message, thrown.code, { field: "schema", reason: changes.map(String).join("; ") }) : thrown;
    });
    tell(`${of} ${version} registered`);
    done(of);
  },
});

const setMode = (of: Json, done: () => void) => () => ask({
  title: `Set mode of ${of.type}`, button: "Set mode",
  text: "What an enqueue does with arguments that don't match the schema.",
  questions: [{ name: "mode", label: "Mode", kind: "choice", value: of.mode, choices: MODES }],
  act: async ({ mode }) => {
    await call("PATCH", `${ROOT}/${seg(of.type)}`, { mode });
    tell(`${of.type}: mode ${mode}`);
    done();
  },
});

export function Schemas() {
  const [pages, setPages] = useState(1);
  const read = usePoll((signal) => readPages(ROOT, pages, 100, signal), [pages], { everyMs: 60_000, about: "" });
  return (
    <Page title="Schemas" read={read} about="JSON Schemas that an enqueue compares the arguments of a job type with." actions={<Act on={register(undefined, (type) => go(`/schemas/${seg(type)}`))}>Register schema</Act>}>
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items} label="Schemas" part={data.more} id={(each) => each.type} empty={<Empty title="No schemas">The arguments of all job types are accepted.</Empty>} columns={[
            { name: "Job type", cell: (each) => <Link to={`/schemas/${seg(each.type)}`}>{each.type}</Link>, by: (each) => each.type },
            { name: "Latest version", cell: (each) => <Text>{String(each.version)}</Text> },
            { name: "Mode", cell: (each) => each.mode, by: (each) => each.mode },
            { name: "Registered", cell: (each) => <Time at={each.created_at} />, by: (each) => each.created_at },
            { name: "", cell: (each) => <Act small of={each.type} on={setMode(each, read.again)}>Set mode</Act> },
          ]} />
          <Pager shown={data.items.length} more={data.more} busy={read.busy} one="job type" order=", by name" on={() => setPages(pages + 1)} />
        </>}</When>
      </Card>
    </Page>
  );
}

export function SchemaPage({ name }: { name: string }) {
  const read = usePoll((signal) => get(`${ROOT}/${seg(name)}/versions`, signal), [name], { everyMs: 60_000, about: "" });
  const wanted = useRoute().query.get("version") ?? undefined;
  const versions: Json[] = read.data?.versions ?? [];
  const version = versions.find((each) => String(each.version) === wanted) ?? versions[0];
  const at = version && String(version.version);
  const schema = usePoll((signal) => (at ? get(`${ROOT}/${seg(name)}/${seg(at)}`, signal) : Promise.resolve(null)), [name, at], { everyMs: 0 });
  const remove = (each: Json) => () => ask({
    title: `Delete version ${each.version} of ${name}?`, button: "Delete version", danger: true,
    text: "Jobs that name it are then not checked. In mode strict they are rejected. This can't be undone.",
    act: async () => {
      await call("DELETE", `${ROOT}/${seg(name)}/${seg(String(each.version))}`);
      tell(`${name} ${each.version} deleted`);
      // The data of the page can be older than an earlier deletion.
      const left = await get(`${ROOT}/${seg(name)}`).catch(() => null);
      if (left) read.again();
      else go("/schemas");
    },
  });
  return (
    <Page title={name} read={read} about={read.data && <>Schema, mode {read.data.mode}</>} actions={read.data && <>
      <Act on={setMode(read.data, read.again)}>Set mode</Act>
      <Act on={register(name, () => { refine({ version: undefined }); read.again(); })}>Register version</Act>
    </>}>
      {read.error?.status === 404 && <Empty title="Schema not found"><Link to="/schemas">View all schemas</Link></Empty>}
      <When read={read}>{() => <>
        <Card title="Versions">
          <Table rows={versions} label="Versions" id={(each) => String(each.version)} columns={[
            { name: "Version", cell: (each) => <Link to={`/schemas/${seg(name)}${query({ version: String(each.version) })}`}>{String(each.version)}</Link> },
            { name: "URI", cell: (each) => <Text>{each.uri}</Text> },
            { name: "Registered", cell: (each) => <Time at={each.created_at} />, by: (each) => each.created_at },
            { name: "", cell: (each) => <Act small danger of={String(each.version)} on={remove(each)}>Delete</Act> },
          ]} />
        </Card>
        <Trouble read={schema} />
        {schema.data && <JsonCard title={`Schema of version ${at}`} value={schema.data.schema} />}
      </>}</When>
    </Page>
  );
}
