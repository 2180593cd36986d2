//! Access to the service: tokens with roles, in a file that its owner alone can read.

use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Name of the file in the service's directory.
pub const TOKEN_FILE: &str = "tokens.toml";

/// Role of a client: watch, operate and configure include those before them. The role of a node includes no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Connects as a node.
    Node,
    /// Sees everything.
    Watch,
    /// Commands runs, acknowledges alarms, judges runs.
    Operate,
    /// Configures the experiment, starts and stops processes.
    Configure,
}

impl Role {
    /// Returns the name, as in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Watch => "watch",
            Self::Operate => "operate",
            Self::Configure => "configure",
        }
    }
}

/// Token of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Name of its owner, for the audit log and for notes.
    pub name: String,
    /// Role of its owner.
    pub role: Role,
    /// The secret: at least 16 characters.
    pub secret: String,
}

impl Token {
    /// Draws a secret for a role.
    fn draw(role: Role) -> Result<Self, String> {
        let mut secret = [0; 24];
        getrandom::fill(&mut secret).map_err(|error| error.to_string())?;
        let secret = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name: role.name().to_owned(), role, secret })
    }
}

/// Reason why a request has no access.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Denied {
    /// There is no token, or none that is known.
    #[error(
        "this service wants a token: thalweg control prints an address that has one, and its directory has the file \
         tokens.toml"
    )]
    Unknown,
    /// The role of the token does not suffice.
    #[error("the token of '{name}' has the role {}, and this needs {}", role.name(), needed.name())]
    Role {
        /// Name of the token.
        name: String,
        /// Role of the token.
        role: Role,
        /// The role that is needed.
        needed: Role,
    },
}

/// Reason why the file of tokens cannot be used.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct TokenError {
    path: PathBuf,
    problem: String,
}

/// All tokens.
#[derive(Debug, Clone)]
pub struct Tokens(Vec<Token>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    token: Vec<Token>,
}

impl Tokens {
    /// Reads the file of tokens in a directory; if there is none, one is made with a token of each role.
    ///
    /// # Errors
    /// The file cannot be read or made, others can read it, or its content is not right.
    pub fn open(directory: &Path) -> Result<Self, TokenError> {
        let path = directory.join(TOKEN_FILE);
        Self::read_or_make(&path).map_err(|problem| TokenError { path, problem })
    }

    fn read_or_make(path: &Path) -> Result<Self, String> {
        match fs::read_to_string(path) {
            Ok(text) => {
                let mode = fs::metadata(path).map_err(|error| error.to_string())?.mode();
                if mode & 0o077 != 0 {
                    return Err(format!(
                        "others can read it (mode {:o}): chmod 600 it, and replace its secrets",
                        mode & 0o777
                    ));
                }
                Self::parse(&text)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let tokens = Self::draw()?;
                tokens.write_new(path).map_err(|error| error.to_string())?;
                Ok(tokens)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: TokenFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        match file.token.iter().find(|token| token.secret.len() < 16) {
            Some(token) => Err(format!("the secret of '{}' has fewer than 16 characters", token.name)),
            None => Ok(Self(file.token)),
        }
    }

    /// Draws a token for each role.
    fn draw() -> Result<Self, String> {
        let roles = [Role::Node, Role::Watch, Role::Operate, Role::Configure];
        roles.into_iter().map(Token::draw).collect::<Result<_, _>>().map(Self)
    }

    fn write_new(&self, path: &Path) -> io::Result<()> {
        let text = toml::to_string(&TokenFile { token: self.0.clone() }).map_err(io::Error::other)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(b"# Tokens: each has a name, a role (node, watch, operate or configure) and a secret.\n")?;
        file.write_all(text.as_bytes())
    }

    /// Returns the first token of a role.
    pub fn token_of(&self, role: Role) -> Option<&Token> {
        self.0.iter().find(|token| token.role == role)
    }

    /// Returns the token of a secret, if its role suffices.
    ///
    /// # Errors
    /// No token has this secret, or its role does not suffice.
    pub fn check_secret(&self, secret: Option<&str>, needed: Role) -> Result<&Token, Denied> {
        let secret = secret.ok_or(Denied::Unknown)?;
        let found = self.0.iter().find(|token| is_same_secret(&token.secret, secret)).ok_or(Denied::Unknown)?;
        let suffices = if needed == Role::Node { found.role == Role::Node } else { found.role >= needed };
        match suffices {
            true => Ok(found),
            false => Err(Denied::Role { name: found.name.clone(), role: found.role, needed }),
        }
    }
}

/// Compares secrets in a time that does not depend on where they differ.
fn is_same_secret(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn tokens_are_drawn_once_and_their_roles_count() {
        let folder = tempfile::tempdir().unwrap();
        let drawn = Tokens::open(folder.path()).unwrap();
        let tokens = Tokens::open(folder.path()).unwrap();
        let secret = |role| drawn.token_of(role).unwrap().secret.clone();
        assert!(tokens.check_secret(Some(&secret(Role::Configure)), Role::Operate).is_ok());
        let denied = tokens.check_secret(Some(&secret(Role::Watch)), Role::Operate).unwrap_err();
        assert_eq!(denied.to_string(), "the token of 'watch' has the role watch, and this needs operate");
        assert!(tokens.check_secret(Some(&secret(Role::Configure)), Role::Node).is_err(), "a node is no operator");
        assert!(tokens.check_secret(Some(&secret(Role::Node)), Role::Watch).is_err(), "nor an operator a node");
        assert_eq!(tokens.check_secret(Some("guess"), Role::Watch).unwrap_err(), Denied::Unknown);
        assert_eq!(tokens.check_secret(None, Role::Watch).unwrap_err(), Denied::Unknown);
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        Tokens::open(folder.path()).unwrap();
        let path = folder.path().join(TOKEN_FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Tokens::open(folder.path()).unwrap_err().to_string().contains("others can read it (mode 644)"));
    }
}
