// The token stands behind the #, which browsers keep to themselves. A form that this page sends makes the cookie be sent
// with the next request; a redirect from the file itself would not.
"use strict";
const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("login_token").value = token;
  document.getElementById("login").submit();
}
