// The token is behind the #, which browsers do not send. The page submits a form, since browsers would not send the new
// cookie after a redirect from the file itself.
"use strict";
const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("login_token").value = token;
  document.getElementById("login").submit();
}
