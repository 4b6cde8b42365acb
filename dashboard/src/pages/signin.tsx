import { type ApiError, refused, type Served } from "../api";
import { useBox } from "../box";
import { Form, PRODUCT } from "../ui";

/** The sign-in page. The key is stored in this tab only, until the tab is closed. */
export function SignIn(props: { authorizer: Served["authorizer"]; signIn: (key: string) => Promise<void> }) {
  const why = useBox(refused);
  if (props.authorizer === "iam")
    return (
      <main id="main" class="alone">
        <h1>{PRODUCT}</h1>
        <p>This deployment requires requests that are signed with AWS credentials (<code>authorizer=iam</code>). A browser can't sign them, and this page doesn't store credentials.</p>
        <p>The command line signs requests with your credentials and shows the same data:</p>
        <pre tabIndex={0}>./ojs-aws queues --stage STAGE --iam</pre>
        <p>To use the dashboard, deploy with <code>authorizer=keys</code> or <code>authorizer=jwt</code>.</p>
      </main>
    );
  const jwt = props.authorizer === "jwt";
  return (
    <main id="main" class="alone">
      <h1>{PRODUCT}</h1>
      {jwt ? (
        <p>This deployment requires an access token of its issuer. Request a token with the scope <code>admin:read</code> and paste it here. To make changes, you also need <code>admin:write</code>.</p>
      ) : (
        <p>Sign in with an access key that has the scope <code>admin:read</code>. To make changes, you also need <code>admin:write</code>. An operator creates the key: <code>./ojs-aws keys create NAME --scope admin:read</code>.</p>
      )}
      <Form
        button="Sign in"
        questions={[{ name: "key", label: jwt ? "Access token" : "Access key", required: true, help: "Stored in this tab only, until you sign out or close it." }]}
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
