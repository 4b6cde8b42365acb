import { type ApiError, refused, type Served } from "../api";
import { useBox } from "../box";
import { Form } from "../ui";

/** Who are you? Kept in this tab alone, until it is closed. */
export function SignIn(props: { authorizer: Served["authorizer"]; signIn: (key: string) => Promise<void> }) {
  const why = useBox(refused);
  if (props.authorizer === "iam")
    return (
      <main id="main" class="alone">
        <h1>Open Job Spec</h1>
        <p>This deployment asks for requests that are signed with AWS credentials (<code>authorizer=iam</code>). A browser has none, and this page keeps none.</p>
        <p>The command line signs with your own credentials, and shows the same:</p>
        <pre tabIndex={0}>./ojs-aws queues --stage STAGE --iam</pre>
        <p>For these pages, deploy with <code>authorizer=keys</code> or <code>authorizer=jwt</code>.</p>
      </main>
    );
  const jwt = props.authorizer === "jwt";
  return (
    <main id="main" class="alone">
      <h1>Open Job Spec</h1>
      {jwt ? (
        <p>This deployment asks for a token of its issuer. Get an access token there, with the scope <code>admin:read</code> (and <code>admin:write</code>, to change things), and paste it.</p>
      ) : (
        <p>Sign in with a key that has <code>admin:read</code>; with <code>admin:write</code> you can change things, too. An operator makes one: <code>./ojs-aws keys create you --scope admin:read</code>.</p>
      )}
      <Form
        button="Sign in"
        questions={[{ name: "key", label: jwt ? "Access token" : "Key", required: true, help: "Kept in this tab until it is closed or you sign out; nowhere else." }]}
        act={(answers) => {
          refused.set("");
          return props.signIn(answers.key!.replace(/^Bearer\s+/i, "")).catch((error: ApiError) => {
            throw error;
          });
        }}
      />
      {why && <p class="notice bad" role="alert">{why}</p>}
    </main>
  );
}
